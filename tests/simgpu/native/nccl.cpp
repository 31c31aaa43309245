// NCCL between the processes of one machine: they exchange through a file in memory, one block after the other.
#include <cuda_runtime_api.h>
#include <errno.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "machine.h"

constexpr size_t HEADER_BYTES = 4096;
constexpr size_t BLOCK_BYTES = 64 * MIB;  // of each rank

struct Header {
  std::atomic<int> arrived, generation, aborted;
  char buses[MAX_GPUS][16];  // of each rank's GPU
};

struct Communicator {
  int rank, ranks;
  Header* header;
  char* blocks;
  char* block(int of) { return blocks + BLOCK_BYTES * of; }
};

extern "C" cudaError_t simgpu_run(cudaStream_t, int, uint64_t, int);
extern "C" const char* simgpu_unsupported_message();

static ncclResult_t take_time(cudaStream_t stream, size_t bytes) {
  constexpr size_t BYTES_PER_NS = 100;
  int gpu;
  cudaGetDevice(&gpu);
  return simgpu_run(stream, gpu, 20000 + bytes / BYTES_PER_NS, 0) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Wait for all ranks. It ends early when one has aborted.
static void meet(Communicator* group) {
  int generation = group->header->generation.load();
  if (group->header->arrived.fetch_add(1) + 1 == group->ranks) {
    group->header->arrived = 0;
    group->header->generation++;
    return;
  }
  while (group->header->generation.load() == generation && !group->header->aborted) usleep(20);
}

// ---- groups of calls run when the outermost group ends

typedef std::function<ncclResult_t()> Call;
static thread_local int group_depth = 0;
static thread_local std::vector<Call> postponed;

static ncclResult_t run_or_postpone(Call call) {
  if (!group_depth) return call();
  postponed.push_back(call);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclGroupEnd() {
  if (--group_depth) return ncclSuccess;
  std::vector<Call> calls = std::move(postponed);
  postponed.clear();
  ncclResult_t result = ncclSuccess;
  for (auto& call : calls)
    if (ncclResult_t one = call()) result = one;
  return result;
}
#if NCCL_VERSION_CODE >= 22200
EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclSuccess; }
#endif

// ---- communicators

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 23007;
  return ncclSuccess;
}
EXPORT const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclInvalidUsage ? simgpu_unsupported_message() : "simulated nccl error";
}
EXPORT const char* ncclGetLastError(ncclComm_t) { return simgpu_unsupported_message(); }

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  unsigned long long now = now_ns();
  snprintf(id->internal, sizeof id->internal, "/dev/shm/simgpu.nccl.%d.%llu", getpid(), now);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* group, int ranks, ncclUniqueId id, int rank) {
  size_t bytes = HEADER_BYTES + BLOCK_BYTES * ranks;
  int file = open(id.internal, O_RDWR | O_CREAT, 0666);
  if (file < 0 || ftruncate(file, bytes)) return ncclSystemError;
  char* memory = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  auto* made = new Communicator{rank, ranks, (Header*)memory, memory + HEADER_BYTES};
  int gpu;
  cudaGetDevice(&gpu);
  cudaDeviceGetPCIBusId(made->header->buses[rank], sizeof made->header->buses[rank], gpu);
  meet(made);
  if (!rank) unlink(id.internal);
  for (int other = 0; other < ranks; other++)
    if (other != rank && !strcmp(made->header->buses[other], made->header->buses[rank])) {
      fprintf(stderr, "simgpu: duplicate GPU: ranks %d and %d are both on %s\n", rank, other, made->header->buses[rank]);
      return ncclInvalidUsage;
    }
  fprintf(stderr, "simgpu: rank %d of %d up\n", rank, ranks);
  *group = (ncclComm_t)made;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* group, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  return ncclCommInitRank(group, ranks, id, rank);
}
EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* group, int ranks, int rank, int, ncclUniqueId* ids,
                                             ncclConfig_t*) {
  return ncclCommInitRank(group, ranks, ids[0], rank);
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) {
  *result = ncclSuccess;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t group) {
  ((Communicator*)group)->header->aborted = 1;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommCount(ncclComm_t group, int* ranks) {
  *ranks = ((Communicator*)group)->ranks;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommUserRank(ncclComm_t group, int* rank) {
  *rank = ((Communicator*)group)->rank;
  return ncclSuccess;
}

// torch's allocator registers its memory from 2.15 on; nothing here reads it from another GPU.
EXPORT ncclResult_t ncclCommRegister(const ncclComm_t, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

// ---- reductions

struct BFloat16 {
  uint16_t bits;
  BFloat16() {}
  BFloat16(float value) {  // to the nearest, ties to even
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bits = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
  }
  operator float() const {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
};

template <class Type, class Wide>
static Wide combine(Wide a, Wide b, int operation) {
  switch (operation) {
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    case ncclProd: return a * b;
    default: return a + b;  // ncclSum and ncclAvg
  }
}

template <class Type, class Wide>
static void reduce_as(char* into, const char* from, size_t count, int operation) {
  Type* result = (Type*)into;
  const Type* other = (const Type*)from;
  for (size_t i = 0; i < count; i++) result[i] = (Type)combine<Type, Wide>((Wide)result[i], (Wide)other[i], operation);
}

static void reduce(char* into, const char* from, size_t count, ncclDataType_t type, int operation) {
  switch (type) {
    case ncclInt8: return reduce_as<int8_t, int>(into, from, count, operation);
    case ncclUint8: return reduce_as<uint8_t, int>(into, from, count, operation);
    case ncclInt32: return reduce_as<int, int>(into, from, count, operation);
    case ncclUint32: return reduce_as<uint32_t, uint32_t>(into, from, count, operation);
    case ncclInt64: return reduce_as<int64_t, int64_t>(into, from, count, operation);
    case ncclUint64: return reduce_as<uint64_t, uint64_t>(into, from, count, operation);
    case ncclFloat16: return reduce_as<_Float16, float>(into, from, count, operation);
    case ncclFloat32: return reduce_as<float, float>(into, from, count, operation);
    case ncclFloat64: return reduce_as<double, double>(into, from, count, operation);
    case ncclBfloat16: return reduce_as<BFloat16, float>(into, from, count, operation);
    default: return;  // float8 is not reduced
  }
}

template <class Type>
static void divide_as(char* values, size_t count, int by) {
  Type* each = (Type*)values;
  for (size_t i = 0; i < count; i++) each[i] = (Type)(float)((double)(float)each[i] / by);
}

static void divide(char* values, size_t count, ncclDataType_t type, int by) {
  switch (type) {
    case ncclFloat16: return divide_as<_Float16>(values, count, by);
    case ncclFloat32: return divide_as<float>(values, count, by);
    case ncclBfloat16: return divide_as<BFloat16>(values, count, by);
    case ncclFloat64:
      for (size_t i = 0; i < count; i++) ((double*)values)[i] /= by;
      return;
    default: return;
  }
}

static size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
#if NCCL_VERSION_CODE >= 22400
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
#endif
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

// ---- collectives

static void reduce_block(Communicator* group, const char* from, char* to, size_t count, ncclDataType_t type,
                         ncclRedOp_t operation) {
  size_t bytes = count * size_of(type);
  memcpy(group->block(group->rank), from, bytes);
  meet(group);
  std::vector<char> total(group->block(0), group->block(0) + bytes);
  for (int rank = 1; rank < group->ranks; rank++) reduce(total.data(), group->block(rank), count, type, operation);
  if (operation == ncclAvg) divide(total.data(), count, type, group->ranks);
  meet(group);
  memcpy(to, total.data(), bytes);
}

EXPORT ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                                  ncclComm_t handle, cudaStream_t stream) {
  return run_or_postpone([=]() {
    auto* group = (Communicator*)handle;
    size_t size = size_of(type), at = 0;
    do {  // also with nothing to reduce: the ranks meet
      size_t part = std::min(count - at, BLOCK_BYTES / size);
      reduce_block(group, (const char*)from + at * size, (char*)to + at * size, part, type, operation);
      at += part;
    } while (at < count);
    return take_time(stream, count * size);
  });
}

EXPORT ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               int, ncclComm_t handle, cudaStream_t stream) {
  return ncclAllReduce(from, to, count, type, operation, handle, stream);
}

EXPORT ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t handle, cudaStream_t stream) {
  return run_or_postpone([=]() {
    auto* group = (Communicator*)handle;
    size_t total = count * size_of(type);
    for (size_t at = 0; at < total; at += BLOCK_BYTES) {
      size_t bytes = std::min(total - at, BLOCK_BYTES);
      if (group->rank == root) memcpy(group->block(0), (const char*)from + at, bytes);
      meet(group);
      memcpy((char*)to + at, group->block(0), bytes);
      meet(group);
    }
    return take_time(stream, total);
  });
}
EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t group,
                              cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, group, stream);
}

EXPORT ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t handle,
                                  cudaStream_t stream) {
  return run_or_postpone([=]() {
    auto* group = (Communicator*)handle;
    size_t total = count * size_of(type);
    for (size_t at = 0; at < total; at += BLOCK_BYTES) {
      size_t bytes = std::min(total - at, BLOCK_BYTES);
      memcpy(group->block(group->rank), (const char*)from + at, bytes);
      meet(group);
      for (int rank = 0; rank < group->ranks; rank++) memcpy((char*)to + rank * total + at, group->block(rank), bytes);
      meet(group);
    }
    return take_time(stream, total);
  });
}
