// The functions of NCCL that torch names and the simulated one has not: they say so and fail.
#include <stdio.h>
#define INVALID_USAGE 5
#define NOT_SIMULATED(name)                                     \
  __attribute__((visibility("default"))) int name() {           \
    fprintf(stderr, "simgpu: " #name " is not simulated\n");    \
    return INVALID_USAGE;                                       \
  }
NOT_SIMULATED(ncclAlltoAll)
NOT_SIMULATED(ncclCommDeregister)
NOT_SIMULATED(ncclCommGetUniqueId)
NOT_SIMULATED(ncclCommGrow)
NOT_SIMULATED(ncclCommInitAll)
NOT_SIMULATED(ncclCommMemStats)
NOT_SIMULATED(ncclCommRegister)
NOT_SIMULATED(ncclCommResume)
NOT_SIMULATED(ncclCommRevoke)
NOT_SIMULATED(ncclCommShrink)
NOT_SIMULATED(ncclCommSplit)
NOT_SIMULATED(ncclCommSuspend)
NOT_SIMULATED(ncclCommWindowDeregister)
NOT_SIMULATED(ncclCommWindowRegister)
NOT_SIMULATED(ncclDevCommCreate)
NOT_SIMULATED(ncclDevCommDestroy)
NOT_SIMULATED(ncclGather)
NOT_SIMULATED(ncclGetLsaMultimemDevicePointer)
NOT_SIMULATED(ncclGetPeerDevicePointer)
NOT_SIMULATED(ncclMemAlloc)
NOT_SIMULATED(ncclMemFree)
NOT_SIMULATED(ncclPutSignal)
NOT_SIMULATED(ncclRecv)
NOT_SIMULATED(ncclRedOpCreatePreMulSum)
NOT_SIMULATED(ncclRedOpDestroy)
NOT_SIMULATED(ncclReduceScatter)
NOT_SIMULATED(ncclSend)
NOT_SIMULATED(ncclSignal)
NOT_SIMULATED(ncclWaitSignal)
NOT_SIMULATED(ncclWinGetUserPtr)
