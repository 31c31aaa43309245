// CUDA's runtime on simulated GPUs, as far as torch calls it.
//
// Device memory is the host's, kernels take simulated time and compute nothing (operators.cpp computes), and copies
// happen at once. A stream is a point in time at which its work will be done; synchronizing sleeps until then.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine.h"
#undef cudaStreamGetCaptureInfo

enum Capture { NO_CAPTURE = 0, CAPTURING = 1, BROKEN_CAPTURE = 2, JOINED_CAPTURE = 3 };

struct Stream {
  int gpu;
  uint64_t done_ns = 0;  // when all that was queued will be done
  int capture = NO_CAPTURE;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;  // of its capture
  pthread_t capturer = 0;                                    // the thread that began it
  int priority = 0;
  unsigned long long id = 0;
};

struct Event {
  uint64_t at_ns = 0;
  bool recorded = false;
  bool timing = true;
  Stream* captured = nullptr;  // the capturing stream in which it was recorded last
};

struct Graph {};

typedef std::lock_guard<std::recursive_mutex> Lock;
static std::recursive_mutex mutex;

struct Allocation {
  size_t bytes;
  int gpu;
};
static std::map<uint64_t, Allocation> device_memory;
static std::map<uint64_t, size_t> pinned_memory;
static std::map<std::pair<int, uint64_t>, Stream*> streams;  // by GPU and address; 0 is the default stream
static std::unordered_map<const void*, std::string> kernel_names;
static std::atomic<int> strict_captures{0};  // captures that forbid unsafe calls, to one thread or to all
static unsigned long long next_stream_id = 1;

static thread_local int current_gpu = 0;  // the machine's number, not CUDA_VISIBLE_DEVICES's
static thread_local cudaError_t last_error = cudaSuccess;
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// ---- the log of calls: SIM_LOG=PREFIX gives a file for each process

static FILE* log_file() {
  static FILE* file = nullptr;
  static int owner = 0;
  const char* prefix = getenv("SIM_LOG");
  if (!prefix) return nullptr;
  if (!file || owner != getpid()) {
    owner = getpid();
    file = fopen((std::string(prefix) + "." + std::to_string(owner)).c_str(), "a");
    if (file) setlinebuf(file);
  }
  return file;
}

#define LOG(...)                               \
  do {                                         \
    if (FILE* file_ = log_file()) {            \
      fprintf(file_, "%.6f ", now_ns() / 1e9); \
      fprintf(file_, __VA_ARGS__);             \
      fputc('\n', file_);                      \
    }                                          \
  } while (0)

// ---- errors

static cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// An error after which this process's context is unusable, as an illegal memory access leaves it.
static std::atomic<int> sticky_error{cudaSuccess};

static cudaError_t broken(int gpu) {
  if (sticky_error == cudaSuccess && fault(shared()->lost[gpu], gpu)) {
    LOG("LOST %d", gpu);
    sticky_error = cudaErrorUnknown;
  }
  return fail((cudaError_t)sticky_error.load());
}

// Running a kernel is what fails asynchronously: it takes the error that a test set for the next process to run one.
static void meet_sticky_error(int gpu) {
  int error = shared()->sticky_error[gpu];
  if (error && __sync_bool_compare_and_swap(&shared()->sticky_error[gpu], error, 0)) {
    LOG("STICKY ERROR %d", error);
    sticky_error = error;
  }
}

#define REQUIRE(call) \
  if (cudaError_t error_ = (call)) return error_

EXPORT cudaError_t cudaPeekAtLastError() { return sticky_error ? (cudaError_t)sticky_error.load() : last_error; }
EXPORT cudaError_t cudaGetLastError() {
  cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

// Called by the stub of a function that is not simulated, of any library: the next error message has its name.
static thread_local std::string unsupported;
EXPORT void simgpu_unsupported(const char* name, int of_runtime) {
  LOG("UNSUPPORTED %s", name);
  unsupported = std::string("not supported: ") + name + " is not simulated";
  if (of_runtime) last_error = cudaErrorNotSupported;  // cudaGetLastError knows of the runtime's calls alone
}
EXPORT const char* simgpu_unsupported_message() { return unsupported.c_str(); }

EXPORT const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
    case cudaErrorUnknown: return "unknown error";
    case cudaErrorNotSupported: return unsupported.c_str();
    default: return "simulated error";
  }
}

EXPORT const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorUnknown: return "cudaErrorUnknown";
    default: return "cudaErrorSimulated";
  }
}

// ---- this process among the others

static Process* own_process;
static int own_pid;

static Process* take_slot() {
  for (auto& process : shared()->processes)
    if (process.pid == getpid()) return &process;
  for (auto& process : shared()->processes) {
    int pid = process.pid;
    if (pid && is_alive(pid)) continue;
    if (!__sync_bool_compare_and_swap((int*)&process.pid, pid, getpid())) continue;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
      process.allocated_bytes[gpu] = process.busy_ns[gpu] = process.done_ns[gpu] = 0;
      process.has_context[gpu] = 0;
    }
    return &process;
  }
  fprintf(stderr, "simgpu: more than %d processes\n", MAX_PROCESSES);
  abort();
}

static Process* own() {
  if (own_process && own_pid == getpid()) return own_process;
  if (own_process) {
    fprintf(stderr, "SIMGPU: CUDA used in a forked child (%d, parent %d had a context)\n", getpid(), own_pid);
    LOG("FORKED-CONTEXT");
  }
  own_process = take_slot();
  own_pid = getpid();
  return own_process;
}

static void make_context(int gpu) {
  if (own()->has_context[gpu]) return;
  own()->has_context[gpu] = 1;
  LOG("context on %d", gpu);
}

// ---- time

static void wait_until(uint64_t ns) {
  uint64_t now = now_ns();
  if (ns <= now) return;
  timespec rest{(time_t)((ns - now) / 1000000000ull), (long)((ns - now) % 1000000000ull)};
  nanosleep(&rest, nullptr);
}

static Stream* stream_of(cudaStream_t handle, int gpu = -1) {
  constexpr uint64_t LAST_SPECIAL_HANDLE = 2;  // the default stream: legacy, or of the thread
  if ((uint64_t)handle > LAST_SPECIAL_HANDLE) return (Stream*)handle;
  Lock lock(mutex);
  int owner = gpu >= 0 ? gpu : current_gpu;
  Stream*& stream = streams[{owner, 0}];
  if (!stream) stream = new Stream{owner};
  return stream;
}

static void queue(Stream* stream, uint64_t ns) {
  Lock lock(mutex);
  if (stream->capture) return;  // a capture runs nothing
  uint64_t now = now_ns(), begin = stream->done_ns > now ? stream->done_ns : now;
  stream->done_ns = begin + ns;
  own()->busy_ns[stream->gpu] += ns;
  if (own()->done_ns[stream->gpu] < stream->done_ns) own()->done_ns[stream->gpu] = stream->done_ns;
  __sync_fetch_and_add(&shared()->busy_ns[stream->gpu], ns);
}

static uint64_t done_ns(int gpu) {
  Lock lock(mutex);
  uint64_t latest = 0;
  for (auto& [key, stream] : streams)
    if (stream->gpu == gpu && stream->done_ns > latest) latest = stream->done_ns;
  return latest;
}

// What a kernel of an operator takes; ``logical_gpu`` is CUDA's number, ``narrow`` whether it computes in 16 bits. For
// operators.cpp and nccl.cpp.
static int physical(int index);
EXPORT cudaError_t simgpu_run(cudaStream_t handle, int logical_gpu, uint64_t ns, int narrow) {
  int gpu = physical(logical_gpu);
  make_context(gpu);
  queue(stream_of(handle, gpu), ns);
  meet_sticky_error(gpu);
  return broken(gpu);
}

EXPORT int simgpu_capture_state(cudaStream_t handle, int logical_gpu) {
  return stream_of(handle, physical(logical_gpu))->capture;
}

// ---- captures

// Whether a capture forbids this thread unsafe calls (cudaThreadExchangeStreamCaptureMode in CUDA's reference).
static bool forbids(const Stream* stream) {
  if (stream->capture != CAPTURING || stream->mode == cudaStreamCaptureModeRelaxed) return false;
  if (pthread_equal(stream->capturer, pthread_self())) return true;
  return stream->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

// An unsafe call: it fails, and breaks the captures that forbid it.
static cudaError_t forbidden_in_captures(const char* what) {
  if (!strict_captures || thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  Lock lock(mutex);
  bool any = false;
  for (auto& [key, stream] : streams) {
    if (!forbids(stream)) continue;
    stream->capture = BROKEN_CAPTURE;
    any = true;
  }
  if (!any) return cudaSuccess;
  LOG("CAPTURE BROKEN by %s", what);
  return fail(cudaErrorStreamCaptureUnsupported);
}

static cudaError_t break_capture(Stream* stream, const char* what, cudaError_t error) {
  stream->capture = BROKEN_CAPTURE;
  LOG("CAPTURE BROKEN by %s", what);
  return fail(error);
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Lock lock(mutex);
  if ((uint64_t)handle <= 1) return fail(cudaErrorStreamCaptureUnsupported);  // the default stream
  Stream* stream = stream_of(handle);
  stream->capture = CAPTURING;
  stream->mode = mode;
  stream->capturer = pthread_self();
  stream->id = next_stream_id++;
  if (mode != cudaStreamCaptureModeRelaxed) strict_captures++;
  LOG("begin capture mode %d", mode);
  return cudaSuccess;
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Lock lock(mutex);
  bool valid = stream_of(handle)->capture == CAPTURING;
  for (auto& [key, stream] : streams) stream->capture = NO_CAPTURE;
  strict_captures = 0;
  LOG(valid ? "end capture" : "end capture: invalid");
  *graph = valid ? (cudaGraph_t) new Graph : nullptr;
  return valid ? cudaSuccess : fail(cudaErrorStreamCaptureInvalidated);
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  int capture = stream_of(handle)->capture;
  *status = capture == NO_CAPTURE       ? cudaStreamCaptureStatusNone
            : capture == BROKEN_CAPTURE ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
#define EDGES(name) const cudaGraphEdgeData*name,
#define EDGES_OUT cudaGraphEdgeData*,
#else  // CUDA 12 has functions of their own for edges
#define EDGES(name)
#define EDGES_OUT
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v2
#endif
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            const cudaGraphNode_t** dependencies, EDGES(*edges) size_t* count) {
  static Graph any_graph;
  static cudaGraphNode_t none[1] = {0};
  if (id) *id = stream_of(handle)->id;
  if (graph) *graph = (cudaGraph_t)&any_graph;
  if (dependencies) *dependencies = none;
#if CUDART_VERSION >= 13000
  if (edges) *edges = nullptr;
#endif
  if (count) *count = 0;
  return cudaStreamIsCapturing(handle, status);
}

EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, EDGES() size_t, unsigned) {
  return cudaSuccess;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

// What a graph replays is recorded and run by operators.cpp; a launch takes the time of one kernel.
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, EDGES_OUT size_t* count) {
  *count = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  *executable = (cudaGraphExec_t) new Graph;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t handle) {
  queue(stream_of(handle), kernel_ns());
  meet_sticky_error(current_gpu);
  return broken(current_gpu);
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  *object = (cudaUserObject_t)8;
  return cudaSuccess;
}
EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }

// ---- devices: CUDA_VISIBLE_DEVICES chooses among the machine's, by number

static std::vector<int> visible_gpus() {
  const char* chosen = getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> found;
  if (!chosen) {
    for (int gpu = 0; gpu < gpu_count(); gpu++) found.push_back(gpu);
    return found;
  }
  for (const char* at = chosen; *at;) {
    char* end;
    long gpu = strtol(at, &end, 10);
    if (end == at || gpu < 0 || gpu >= gpu_count()) break;  // CUDA ignores what comes after an invalid one
    found.push_back((int)gpu);
    at = *end == ',' ? end + 1 : end;
  }
  return found;
}

static int physical(int index) {
  std::vector<int> visible = visible_gpus();
  return index >= 0 && index < (int)visible.size() ? visible[index] : index;
}

static int logical(int gpu) {
  std::vector<int> visible = visible_gpus();
  for (size_t index = 0; index < visible.size(); index++)
    if (visible[index] == gpu) return (int)index;
  return 0;
}

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = (int)visible_gpus().size();
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

EXPORT cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= (int)visible_gpus().size()) return fail(cudaErrorInvalidDevice);
  current_gpu = physical(index);
  make_context(current_gpu);
  return broken(current_gpu);
}

EXPORT cudaError_t cudaGetDevice(int* index) {
  static thread_local bool chosen = false;
  if (!chosen && !current_gpu) current_gpu = physical(0);
  chosen = true;
  *index = logical(current_gpu);
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= (int)visible_gpus().size()) return fail(cudaErrorInvalidDevice);
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "%s", gpu_name());
  write_uuid(physical(index), (unsigned char*)properties->uuid.bytes);
  properties->pciBusID = 1 + physical(index);
  properties->major = capability_major();
  properties->minor = capability_minor();
  properties->multiProcessorCount = multiprocessors();
  properties->totalGlobalMem = memory_bytes();
  properties->totalConstMem = 64 << 10;
  properties->l2CacheSize = 40 << 20;
  properties->memoryBusWidth = 5120;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 163 << 10;
  properties->sharedMemPerMultiprocessor = 164 << 10;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->textureAlignment = 512;
  properties->texturePitchAlignment = 32;
  properties->asyncEngineCount = 3;
  properties->concurrentKernels = properties->cooperativeLaunch = properties->ECCEnabled = 1;
  properties->unifiedAddressing = properties->managedMemory = properties->canMapHostMemory = 1;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = capability_major(); break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability_minor(); break;
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors(); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 163 << 10; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int index) {
  snprintf(text, size, "0000:%02x:00.0", 1 + physical(index));
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

EXPORT cudaError_t cudaDeviceSynchronize() {
  REQUIRE(forbidden_in_captures("cudaDeviceSynchronize"));
  make_context(current_gpu);
  wait_until(done_ns(current_gpu));
  return broken(current_gpu);
}

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  make_context(current_gpu);
  REQUIRE(broken(current_gpu));
  uint64_t used = used_bytes(current_gpu);
  *total = memory_bytes();
  *free = used < *total ? *total - used : 0;
  return cudaSuccess;
}

// ---- memory

EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  REQUIRE(forbidden_in_captures("cudaMalloc"));
  make_context(current_gpu);
  REQUIRE(broken(current_gpu));
  Lock lock(mutex);
  *pointer = nullptr;
  if (used_bytes(current_gpu) + bytes > memory_bytes()) {
    LOG("OOM %zu", bytes);
    return fail(cudaErrorMemoryAllocation);
  }
  void* memory =
      mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  device_memory[(uint64_t)memory] = {bytes, current_gpu};
  own()->allocated_bytes[current_gpu] += bytes;
  *pointer = memory;
  LOG("malloc %zu dev %d", bytes, current_gpu);
  return cudaSuccess;
}

EXPORT cudaError_t cudaFree(void* pointer) {
  if (!pointer) {  // the idiom that creates a context
    make_context(current_gpu);
    return broken(current_gpu);
  }
  REQUIRE(forbidden_in_captures("cudaFree"));
  REQUIRE(broken(current_gpu));
  Lock lock(mutex);
  auto found = device_memory.find((uint64_t)pointer);
  if (found == device_memory.end()) return fail(cudaErrorInvalidValue);
  auto [bytes, gpu] = found->second;
  own()->allocated_bytes[gpu] -= bytes;
  munmap(pointer, bytes);
  device_memory.erase(found);
  wait_until(done_ns(gpu));
  return cudaSuccess;
}

EXPORT cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
EXPORT cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  REQUIRE(forbidden_in_captures("cudaHostAlloc"));
  Lock lock(mutex);
  if (posix_memalign(pointer, 4096, bytes ? bytes : 1)) return fail(cudaErrorMemoryAllocation);
  pinned_memory[(uint64_t)*pointer] = bytes;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFreeHost(void* pointer) {
  Lock lock(mutex);
  pinned_memory.erase((uint64_t)pointer);
  free(pointer);
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  Lock lock(mutex);
  pinned_memory[(uint64_t)pointer] = bytes;
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostUnregister(void* pointer) {
  Lock lock(mutex);
  pinned_memory.erase((uint64_t)pointer);
  return cudaSuccess;
}

static size_t length(const Allocation& allocation) { return allocation.bytes; }
static size_t length(size_t bytes) { return bytes; }

// The allocation that a pointer lies in; null if there is none.
template <class Value>
static const Value* containing(const std::map<uint64_t, Value>& memory, const void* pointer) {
  uint64_t address = (uint64_t)pointer;
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  auto& [start, value] = *--after;
  return address < start + length(value) ? &value : nullptr;
}

constexpr int HOST = -1;

static int gpu_of(const void* pointer) {
  Lock lock(mutex);
  const Allocation* found = containing(device_memory, pointer);
  return found ? found->gpu : HOST;
}

static bool is_pinned(const void* pointer) {
  Lock lock(mutex);
  return containing(pinned_memory, pointer) != nullptr;
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  memset(attributes, 0, sizeof *attributes);
  int gpu = gpu_of(pointer);
  if (gpu != HOST) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = logical(gpu);
    attributes->devicePointer = (void*)pointer;
    return cudaSuccess;
  }
  attributes->hostPointer = (void*)pointer;
  attributes->type = cudaMemoryTypeUnregistered;
  if (is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = logical(current_gpu);
    attributes->devicePointer = (void*)pointer;
  }
  return cudaSuccess;
}

static uint64_t copy_ns(size_t bytes) {
  constexpr double GB_PER_S = 12;
  return 2000 + bytes / GB_PER_S;
}

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  Stream* stream = stream_of(handle);
  make_context(stream->gpu);
  REQUIRE(broken(stream->gpu));
  bool to_host = gpu_of(to) == HOST, from_host = gpu_of(from) == HOST;
  if (to_host && from_host && kind != cudaMemcpyHostToHost) LOG("MEMCPY-HOST-HOST %zu kind %d", bytes, kind);
  bool pageable = (to_host || from_host) && !is_pinned(to_host ? to : from);
  if (stream->capture && pageable) return break_capture(stream, "pageable memcpy", cudaErrorStreamCaptureUnsupported);
  LOG("memcpyAsync %zu %s%s stream %llu", bytes, from_host ? "H" : "D", to_host ? "H" : "D", stream->id);
  memcpy(to, from, bytes);
  queue(stream, copy_ns(bytes));
  if (pageable) wait_until(stream->done_ns);
  return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  REQUIRE(forbidden_in_captures("cudaMemcpy"));
  REQUIRE(broken(current_gpu));
  memcpy(to, from, bytes);
  Stream* stream = stream_of(nullptr);
  queue(stream, copy_ns(bytes));
  wait_until(stream->done_ns);
  return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind, cudaStream_t handle) {
  for (size_t row = 0; row < height; row++)
    memcpy((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  queue(stream_of(handle), copy_ns(width * height));
  return broken(current_gpu);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  memcpy(to, from, bytes);
  queue(stream_of(handle), copy_ns(bytes));
  return broken(current_gpu);
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
EXPORT cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  memset(to, value, bytes);
  return broken(current_gpu);
}
EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  memset(to, value, bytes);
  queue(stream_of(handle), 2000 + bytes / 1000);
  return broken(current_gpu);
}
EXPORT cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  static char room[1 << 16];
  *pointer = room;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t)8;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  memset(value, 0, 8);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  memset(value, 0, 8);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) { return cudaSuccess; }
EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// ---- streams

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
  Lock lock(mutex);
  make_context(current_gpu);
  Stream* stream = new Stream{current_gpu};
  stream->priority = priority;
  stream->id = next_stream_id++;
  streams[{current_gpu, (uint64_t)stream}] = stream;
  *handle = (cudaStream_t)stream;
  return broken(current_gpu);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  *priority = stream_of(handle)->priority;
  return cudaSuccess;
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Stream* stream = stream_of(handle);
  if (stream->capture) return break_capture(stream, "cudaStreamQuery", cudaErrorStreamCaptureUnsupported);
  REQUIRE(forbidden_in_captures("cudaStreamQuery"));
  REQUIRE(broken(stream->gpu));
  return stream->done_ns > now_ns() ? fail(cudaErrorNotReady) : cudaSuccess;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream* stream = stream_of(handle);
  if (stream->capture) return break_capture(stream, "cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported);
  REQUIRE(forbidden_in_captures("cudaStreamSynchronize"));
  LOG("streamSynchronize %llu", stream->id);
  wait_until(stream->done_ns);
  return broken(stream->gpu);
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  Event* event = (Event*)awaited;
  if (event->captured && event->captured->capture) {
    if (!stream->capture) stream->capture = JOINED_CAPTURE;
    return cudaSuccess;
  }
  if (stream->capture && event->recorded)
    return break_capture(stream, "waiting for an event from outside", cudaErrorStreamCaptureIsolation);
  if (event->recorded && event->at_ns > stream->done_ns) stream->done_ns = event->at_ns;
  return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* argument) {
  function(argument);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* argument, unsigned) {
  function(stream, cudaSuccess, argument);
  return cudaSuccess;
}

// ---- events

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  Event* event = new Event;
  event->timing = !(flags & cudaEventDisableTiming);
  *handle = (cudaEvent_t)event;
  return broken(current_gpu);
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

EXPORT cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  Lock lock(mutex);
  Event* event = (Event*)handle;
  Stream* stream = stream_of(on);
  event->recorded = true;
  event->captured = stream->capture ? stream : nullptr;
  if (stream->capture) return cudaSuccess;
  uint64_t now = now_ns();
  event->at_ns = stream->done_ns > now ? stream->done_ns : now;
  return broken(stream->gpu);
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned) {
  return cudaEventRecord(handle, on);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Event* event = (Event*)handle;
  if (event->captured && event->captured->capture)
    return break_capture(event->captured, "cudaEventQuery of a captured event", cudaErrorCapturedEvent);
  REQUIRE(forbidden_in_captures("cudaEventQuery"));
  REQUIRE(broken(current_gpu));
  return event->recorded && event->at_ns > now_ns() ? fail(cudaErrorNotReady) : cudaSuccess;
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Event* event = (Event*)handle;
  if (event->captured && event->captured->capture) return fail(cudaErrorCapturedEvent);
  REQUIRE(forbidden_in_captures("cudaEventSynchronize"));
  if (event->recorded) wait_until(event->at_ns);
  return broken(current_gpu);
}

EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Event *first = (Event*)begin, *last = (Event*)end;
  REQUIRE(broken(current_gpu));
  if (!first->timing || !last->timing || !first->recorded || !last->recorded)
    return fail(cudaErrorInvalidResourceHandle);
  if (first->at_ns > now_ns() || last->at_ns > now_ns()) return fail(cudaErrorNotReady);
  *milliseconds = ((double)last->at_ns - (double)first->at_ns) / 1e6;
  return cudaSuccess;
}

// ---- kernels that torch launches itself: they take time, and compute nothing

static std::string demangled(const std::string& name) {
  int status;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text ? text : name;
  free(text);
  return result;
}

static cudaError_t launch(const void* kernel, cudaStream_t handle) {
  make_context(current_gpu);
  auto known = kernel_names.find(kernel);
  std::string name = known == kernel_names.end() ? "?" : known->second;
  queue(stream_of(handle), kernel_ns());
  LOG("NATIVE-KERNEL %.400s", demangled(name).c_str());
  meet_sticky_error(current_gpu);
  return broken(current_gpu);
}

EXPORT cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(kernel, stream);
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch((const void*)kernel, stream);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(kernel, stream);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* kernel, void**) {
  return launch(kernel, configuration->stream);
}

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *(cudaStream_t*)stream = top.stream;
  return cudaSuccess;
}

EXPORT void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*,
                                   int*) {
  kernel_names[host] = name;
}
EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT char __cudaInitModule(void**) { return 0; }
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = capability_major() * 10 + capability_minor();
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 4;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                          unsigned) {
  *blocks = 4;
  return cudaSuccess;
}
EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- the driver, as far as torch asks it

EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = (int)visible_gpus().size();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = own_process && own_pid == getpid() && own_process->has_context[physical(device)];
  return CUDA_SUCCESS;
}
static CUcontext context_handle(int gpu) { return (CUcontext)(uint64_t)(0x1000 + gpu); }
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_handle(current_gpu);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_handle(device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_NOT_SUPPORTED ? unsupported.c_str() : "simulated";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int*)value = gpu_of((void*)pointer);
  return CUDA_SUCCESS;
}

static CUresult refuse() { return CUDA_ERROR_NOT_SUPPORTED; }
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  LOG("ENTRYPOINT %s %p", name, *function);
  if (!*function) *function = (void*)refuse;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
