// NVML of the simulated machine. It numbers the GPUs the other way round than CUDA does, as real machines may.
#include <math.h>

#include "machine.h"

typedef unsigned long long u64;

enum Code {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NO_PERMISSION = 4,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  FUNCTION_NOT_FOUND = 13,
  GPU_IS_LOST = 15,
  ARGUMENT_VERSION_MISMATCH = 25,
};

struct Board {
  int gpu;  // CUDA's number
  char uuid[64];
};
typedef Board* Handle;

static Board boards[MAX_GPUS];
static int initialized = 0;

// Whether SIM_NVML_OFF names a feature, which an older driver may lack.
static bool lacks(const char* feature) {
  const char* list = getenv("SIM_NVML_OFF");
  return list && strstr(list, feature);
}

static int problem(Handle board) {
  if (!initialized) return UNINITIALIZED;
  if (fault(shared()->lost[board->gpu], board->gpu)) return GPU_IS_LOST;
  return (int)fault(shared()->nvml_error[board->gpu], board->gpu);
}

#define REQUIRE(board) \
  if (int code = problem(board)) return code

// ---- the library

static void write_name(Board& board) {
  unsigned char b[16];
  write_uuid(board.gpu, b);
  snprintf(board.uuid, sizeof board.uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

EXPORT int nvmlInit_v2() {
  initialized++;
  for (int index = 0; index < gpu_count(); index++) {
    boards[index].gpu = gpu_count() - 1 - index;
    write_name(boards[index]);
  }
  return SUCCESS;
}
EXPORT int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
EXPORT int nvmlInit() { return nvmlInit_v2(); }

EXPORT int nvmlShutdown() {
  if (!initialized) return UNINITIALIZED;
  initialized--;
  return SUCCESS;
}

EXPORT const char* nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  snprintf(text, size, "580.95.05");
  return SUCCESS;
}
EXPORT int nvmlSystemGetNVMLVersion(char* text, unsigned size) {
  snprintf(text, size, "13.580.95.05");
  return SUCCESS;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return SUCCESS;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

// ---- finding a GPU

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  if (!initialized) return UNINITIALIZED;
  *count = gpu_count();
  return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* found) {
  if (!initialized) return UNINITIALIZED;
  if ((int)index >= gpu_count()) return INVALID_ARGUMENT;
  *found = &boards[index];
  return problem(*found);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* found) {
  if (!initialized) return UNINITIALIZED;
  for (int index = 0; index < gpu_count(); index++) {
    if (strcmp(boards[index].uuid, uuid)) continue;
    *found = &boards[index];
    return problem(*found);
  }
  return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* address, Handle* found) {
  if (!initialized) return UNINITIALIZED;
  for (int index = 0; index < gpu_count(); index++) {
    char text[32];
    snprintf(text, sizeof text, "%02x:00.0", 1 + boards[index].gpu);
    if (!strstr(address, text)) continue;
    *found = &boards[index];
    return SUCCESS;
  }
  return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(Handle board, char* text, unsigned size) {
  REQUIRE(board);
  snprintf(text, size, "%s", board->uuid);
  return SUCCESS;
}
EXPORT int nvmlDeviceGetName(Handle board, char* text, unsigned size) {
  REQUIRE(board);
  snprintf(text, size, "%s", gpu_name());
  return SUCCESS;
}
EXPORT int nvmlDeviceGetIndex(Handle board, unsigned* index) {
  REQUIRE(board);
  *index = board - boards;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetMinorNumber(Handle board, unsigned* number) {
  *number = board->gpu;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Handle board, int* major, int* minor) {
  REQUIRE(board);
  *major = capability_major();
  *minor = capability_minor();
  return SUCCESS;
}

// ---- memory

struct Memory {
  u64 total, free, used;
};
struct MemoryV2 {
  unsigned version;
  u64 total, reserved, free, used;
};
constexpr unsigned MEMORY_V2 = 0x02000028;

EXPORT int nvmlDeviceGetMemoryInfo(Handle board, Memory* memory) {
  REQUIRE(board);
  u64 used = used_bytes(board->gpu) + RESERVED_BYTES;
  memory->total = memory_bytes();
  memory->used = used < memory->total ? used : memory->total;
  memory->free = memory->total - memory->used;
  return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle board, MemoryV2* memory) {
  REQUIRE(board);
  if (lacks("memory_v2")) return FUNCTION_NOT_FOUND;
  if (memory->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
  memory->total = memory_bytes();
  memory->reserved = RESERVED_BYTES;
  memory->used = used_bytes(board->gpu);
  u64 taken = memory->used + memory->reserved;
  memory->free = memory->total > taken ? memory->total - taken : 0;
  return SUCCESS;
}

// ---- clocks, temperature, utilization

constexpr unsigned MEMORY_CLOCK = 2;

struct Step {
  double seconds;
  unsigned mhz, celsius, watts, percent;
  u64 reasons;
};

// The step of SIM_COURSE that holds now: the course begins anew each time the seconds since 1970 are a multiple of its
// length. Without a course there is no step.
static const Step* planted() {
  static Step steps[32];
  static int count = -1;
  static double length = 0;
  if (count < 0) {
    count = 0;
    Step step;
    int read = 0;
    for (const char* text = setting("SIM_COURSE", "");
         count < 32 && sscanf(text, "%lf:%u,%u,%u,%u,%llx%n", &step.seconds, &step.mhz, &step.celsius, &step.watts,
                              &step.percent, &step.reasons, &read) == 6;
         text += text[read] ? read + 1 : read) {
      steps[count++] = step;
      length += step.seconds;
    }
  }
  if (!count) return nullptr;
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  double at = fmod(time.tv_sec + time.tv_nsec / 1e9, length);
  const Step* step = steps;
  while (at >= step->seconds && step < steps + count - 1) at -= step++->seconds;
  return step;
}

EXPORT int nvmlDeviceGetMaxClockInfo(Handle board, unsigned clock, unsigned* mhz) {
  REQUIRE(board);
  *mhz = clock == MEMORY_CLOCK ? 1215 : 1410;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetClockInfo(Handle board, unsigned clock, unsigned* mhz) {
  REQUIRE(board);
  *mhz = clock == MEMORY_CLOCK ? 1215 : planted() ? planted()->mhz : 1395;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetTemperature(Handle board, unsigned, unsigned* celsius) {
  REQUIRE(board);
  *celsius = planted() ? planted()->celsius : 42;
  return SUCCESS;
}

struct Temperature {
  unsigned version, sensor;
  int celsius;
};
EXPORT int nvmlDeviceGetTemperatureV(Handle board, Temperature* temperature) {
  REQUIRE(board);
  temperature->celsius = planted() ? planted()->celsius : 43;
  return SUCCESS;
}

struct Utilization {
  unsigned gpu, memory;
};
EXPORT int nvmlDeviceGetUtilizationRates(Handle board, Utilization* utilization) {
  REQUIRE(board);
  *utilization = {planted() ? planted()->percent : 50, 10};
  return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Handle board, u64* bits) {
  REQUIRE(board);
  *bits = fault(shared()->clock_reasons[board->gpu], board->gpu) | (planted() ? planted()->reasons : 0);
  return SUCCESS;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Handle board, u64* bits) {
  REQUIRE(board);
  if (lacks("event_reasons")) return FUNCTION_NOT_FOUND;
  return nvmlDeviceGetCurrentClocksThrottleReasons(board, bits);
}

struct Violation {
  u64 reference_time, violation_time;
};
EXPORT int nvmlDeviceGetViolationStatus(Handle board, unsigned, Violation* violation) {
  REQUIRE(board);
  *violation = {0, 0};
  return SUCCESS;
}

static uint64_t throttled_ns(int gpu) {
  uint64_t since = fault(shared()->thermal_since_ns[gpu], gpu), now = now_ns();
  return shared()->thermal_ns[gpu] + (since && now > since ? now - since : 0);
}

// ---- power and energy: 60 W, and 240 W more while kernels run

EXPORT int nvmlDeviceGetEnforcedPowerLimit(Handle board, unsigned* milliwatts) {
  REQUIRE(board);
  *milliwatts = power_limit_mw();
  return SUCCESS;
}
EXPORT int nvmlDeviceGetPowerManagementLimit(Handle board, unsigned* milliwatts) {
  return nvmlDeviceGetEnforcedPowerLimit(board, milliwatts);
}
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(Handle board, unsigned* milliwatts) {
  return nvmlDeviceGetEnforcedPowerLimit(board, milliwatts);
}

static const Power& power(int gpu) {
  constexpr double IDLE_W = 60, BUSY_W = 240, TICKS_PER_S = 10;
  Power& last = shared()->power[gpu];
  u64 tick = now_ns() / (u64)(1e9 / TICKS_PER_S);
  if (last.tick == tick) return last;
  u64 energy_mj = tick * 1000 * IDLE_W / TICKS_PER_S + shared()->busy_ns[gpu] / 1e9 * BUSY_W * 1000;
  double milliwatts = IDLE_W * 1000;
  if (last.tick && tick > last.tick)
    milliwatts = (double)(energy_mj - last.energy_mj) / (tick - last.tick) * TICKS_PER_S;
  last = {tick, energy_mj, milliwatts < power_limit_mw() ? (u64)milliwatts : power_limit_mw()};
  return last;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(Handle board, u64* millijoules) {
  REQUIRE(board);
  if (lacks("energy")) return NOT_SUPPORTED;
  *millijoules = power(board->gpu).energy_mj;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetPowerUsage(Handle board, unsigned* milliwatts) {
  REQUIRE(board);
  if (lacks("power")) return NOT_SUPPORTED;
  *milliwatts = planted() ? planted()->watts * 1000 : power(board->gpu).power_mw;
  return SUCCESS;
}

// ---- fields

enum Field {
  PERF_POLICY_POWER = 74,
  PERF_POLICY_THERMAL = 75,
  PERF_POLICY_SYNC_BOOST = 76,
  POWER_INSTANT = 186,
  // How long each clock event reason held, which older drivers do not tell.
  REASON_SW_THERMAL = 269,
  REASON_HW_THERMAL = 270,
  REASON_HW_POWER_BRAKE = 271,
};
enum ValueType { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

struct FieldValue {
  unsigned id, scope;
  long long timestamp_us, latency_us;
  unsigned type;
  int code;
  union {
    double d;
    unsigned ui;
    unsigned long ul;
    u64 ull;
  } value;
};

static void read_field(int gpu, FieldValue& field) {
  field.code = SUCCESS;
  field.type = UNSIGNED_LONG_LONG;
  field.timestamp_us = now_ns() / 1000;
  field.value.ull = 0;
  if (field.id == POWER_INSTANT) {
    if (lacks("instant")) {
      field.code = NOT_SUPPORTED;
      return;
    }
    field.type = UNSIGNED_INT;
    field.value.ui = planted() ? planted()->watts * 1000 : power(gpu).power_mw;
  } else if (field.id == PERF_POLICY_THERMAL) {
    field.value.ull = throttled_ns(gpu);
  } else if (field.id >= REASON_SW_THERMAL && field.id <= REASON_HW_POWER_BRAKE) {
    if (lacks("fields")) field.code = NOT_SUPPORTED;
    else if (field.id == REASON_SW_THERMAL) field.value.ull = throttled_ns(gpu);
  } else if (field.id != PERF_POLICY_POWER && field.id != PERF_POLICY_SYNC_BOOST) {
    field.code = NOT_SUPPORTED;
  }
}

EXPORT int nvmlDeviceGetFieldValues(Handle board, int count, FieldValue* fields) {
  REQUIRE(board);
  for (int i = 0; i < count; i++) read_field(board->gpu, fields[i]);
  return SUCCESS;
}

// ---- processes

struct ProcessInfo {
  unsigned pid;
  u64 used_bytes;
  unsigned gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle board, unsigned* count, ProcessInfo* found) {
  REQUIRE(board);
  unsigned room = *count, number = 0;
  for (auto& process : shared()->processes) {
    if (!computes_on(process, board->gpu)) continue;
    u64 used = process.allocated_bytes[board->gpu] + context_bytes();
    if (number < room) found[number] = {(unsigned)process.pid, used, ~0u, ~0u};
    number++;
  }
  *count = number;
  return number > room ? INSUFFICIENT_SIZE : SUCCESS;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Handle board, unsigned* count, ProcessInfo* found) {
  return nvmlDeviceGetComputeRunningProcesses_v3(board, count, found);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(Handle board, unsigned* count, ProcessInfo* found) {
  return nvmlDeviceGetComputeRunningProcesses_v3(board, count, found);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle, unsigned* count, ProcessInfo*) {
  *count = 0;
  return SUCCESS;
}

struct ProcessSample {
  unsigned pid;
  u64 timestamp_us;
  unsigned sm_pct, memory_pct, encoder_pct, decoder_pct;
};

struct LastSeen {
  int pid;
  uint64_t busy_ns, at_ns;
  unsigned pct;
  u64 stamp_us;  // of the time of day, as a driver gives it
};

static u64 time_of_day_us() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1000000ull + time.tv_nsec / 1000;
}

// Look, at least 100 ms after the last time, in what share of the time between a process's kernels ran.
static void look(const Process& process, int gpu, LastSeen& last) {
  uint64_t now = now_ns(), done = process.done_ns[gpu], queued = process.busy_ns[gpu], left = done > now ? done - now : 0;
  uint64_t busy = queued > left ? queued - left : 0;  // what is queued runs later
  if (last.pid != process.pid) {
    last = {process.pid, busy, now, 0, 0};
  } else if (now - last.at_ns > 100000000ull) {
    double pct = 100.0 * (busy - last.busy_ns) / (now - last.at_ns);
    last = {process.pid, busy, now, (unsigned)(pct < 0 ? 0 : pct < 100 ? pct : 100), time_of_day_us()};
  }
}

EXPORT int nvmlDeviceGetProcessUtilization(Handle board, ProcessSample* found, unsigned* count, u64) {
  static LastSeen seen[MAX_GPUS][MAX_PROCESSES];
  REQUIRE(board);
  if (lacks("process_utilization")) return NOT_SUPPORTED;
  unsigned room = *count, number = 0;
  for (int i = 0; i < MAX_PROCESSES; i++) {
    const Process& process = shared()->processes[i];
    if (!computes_on(process, board->gpu)) continue;
    LastSeen& last = seen[board->gpu][i];
    look(process, board->gpu, last);
    if (!last.pct) continue;
    if (found && number < room) found[number] = {(unsigned)process.pid, last.stamp_us, last.pct, 10, 0, 0};
    number++;
  }
  if (!number) return NOT_FOUND;
  *count = number;
  return !found || number > room ? INSUFFICIENT_SIZE : SUCCESS;
}

// ---- what gpustat and torch ask besides

EXPORT int nvmlDeviceGetEncoderUtilization(Handle, unsigned* pct, unsigned* period_us) {
  *pct = *period_us = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetDecoderUtilization(Handle, unsigned* pct, unsigned* period_us) {
  *pct = *period_us = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetComputeMode(Handle, unsigned* mode) {
  *mode = 0;  // NVML_COMPUTEMODE_DEFAULT
  return SUCCESS;
}
EXPORT int nvmlDeviceGetPersistenceMode(Handle, unsigned* mode) {
  *mode = 1;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetPerformanceState(Handle, unsigned* state) {
  *state = 0;  // P0
  return SUCCESS;
}
EXPORT int nvmlDeviceGetBrand(Handle, unsigned* brand) {
  *brand = 14;  // NVML_BRAND_NVIDIA
  return SUCCESS;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Handle, unsigned* count) {
  *count = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetP2PStatus(Handle, Handle, unsigned, unsigned* status) {
  *status = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetFanSpeed(Handle, unsigned*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetMigMode(Handle, unsigned*, unsigned*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle, Handle*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Handle, unsigned, Handle*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkState(Handle, unsigned, unsigned*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, unsigned*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetGpuFabricInfo(Handle, void*) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return NOT_SUPPORTED; }
