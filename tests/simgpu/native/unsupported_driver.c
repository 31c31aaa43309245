// The driver's functions that libraries beside torch name and nothing here calls.
#define NOT_SUPPORTED 801
#define NOT_SIMULATED(name) \
  __attribute__((visibility("default"))) int name() { return NOT_SUPPORTED; }
NOT_SIMULATED(cuFuncGetAttribute)
NOT_SIMULATED(cuFuncSetAttribute)
NOT_SIMULATED(cuFuncSetCacheConfig)
NOT_SIMULATED(cuLaunchCooperativeKernel)
NOT_SIMULATED(cuLaunchKernel)
NOT_SIMULATED(cuLinkAddData_v2)
NOT_SIMULATED(cuLinkComplete)
NOT_SIMULATED(cuLinkCreate_v2)
NOT_SIMULATED(cuModuleGetFunction)
NOT_SIMULATED(cuModuleLoad)
NOT_SIMULATED(cuModuleLoadData)
NOT_SIMULATED(cuModuleLoadDataEx)
NOT_SIMULATED(cuModuleUnload)
NOT_SIMULATED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_SIMULATED(cuTensorMapEncodeTiled)
