// The simulated machine, as every simulated library sees it: its settings, which are environment variables, and the
// state that all its processes share, which is a file in memory. tests/simgpu/machine.py has the same layout.
#pragma once
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr int MAX_GPUS = 8;
constexpr int MAX_PROCESSES = 256;
constexpr uint64_t MIB = 1ull << 20;
constexpr uint64_t RESERVED_BYTES = 500 * MIB;  // what NVML tells of as the driver's own

// ---- what the processes share

struct Process {
  volatile int pid;
  volatile int has_context[MAX_GPUS];
  volatile uint64_t allocated_bytes[MAX_GPUS];
  volatile uint64_t busy_ns[MAX_GPUS];  // what was queued takes so long
  volatile uint64_t done_ns[MAX_GPUS];  // when all of it will be done
};

struct Power {  // the energy counter, which moves every 100 ms
  uint64_t tick, energy_mj, power_mw;
};

struct Shared {
  Process processes[MAX_PROCESSES];
  volatile uint64_t busy_ns[MAX_GPUS];
  Power power[MAX_GPUS];
  // Faults, which a test sets in the middle of a run. They hold while the process ``holder`` lives; 0: until repaired.
  volatile int holder[MAX_GPUS];
  volatile uint64_t clock_reasons[MAX_GPUS];     // bits of nvmlClocksEventReasons
  volatile uint64_t thermal_ns[MAX_GPUS];        // how long heat has held the clocks down
  volatile uint64_t thermal_since_ns[MAX_GPUS];  // since when it does; 0 if it does not
  volatile uint64_t taken_bytes[MAX_GPUS];       // memory that processes outside this container hold
  volatile int lost[MAX_GPUS];                   // 1: the GPU fell off the bus
  volatile int nvml_error[MAX_GPUS];             // what every question to NVML about this GPU returns; 0: an answer
  volatile int sticky_error[MAX_GPUS];           // a CUDA error that the next process to run a kernel meets for good
};

// ---- settings

static inline const char* setting(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

static inline int gpu_count() { return atoi(setting("SIM_COUNT", "2")); }
static inline const char* gpu_name() { return setting("SIM_NAME", "NVIDIA A100-SIM"); }
static inline uint64_t memory_bytes() { return strtoull(setting("SIM_MEM_MB", "4096"), nullptr, 10) * MIB; }
// What a process takes on a GPU before it allocates anything.
static inline uint64_t context_bytes() { return strtoull(setting("SIM_CONTEXT_MB", "300"), nullptr, 10) * MIB; }
static inline int multiprocessors() { return atoi(setting("SIM_CORES", "108")); }
static inline unsigned power_limit_mw() { return atoi(setting("SIM_POWER_W", "300")) * 1000; }
static inline int capability_major() { return atoi(setting("SIM_CC", "8.0")); }

static inline int capability_minor() {
  const char* dot = strchr(setting("SIM_CC", "8.0"), '.');
  return dot ? atoi(dot + 1) : 0;
}

static inline uint64_t kernel_ns() {
  static uint64_t value = strtoull(setting("SIM_KERNEL_NS", "20000"), nullptr, 10);
  return value;
}

// ---- the state

static inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static inline Shared* shared() {
  static Shared* mapped = nullptr;
  if (!mapped) {
    std::string path = setting("SIM_SHM", "/dev/shm/simgpu");
    // Tests that run beside each other have a machine each.
    if (!getenv("SIM_SHM") && getenv("PYTEST_XDIST_WORKER")) path += std::string(".") + getenv("PYTEST_XDIST_WORKER");
    int file = open(path.c_str(), O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, sizeof(Shared))) {
      perror(path.c_str());
      abort();
    }
    mapped = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
  }
  return mapped;
}

static inline bool is_alive(int pid) { return pid && kill(pid, 0) == 0; }

static inline bool computes_on(const Process& process, int gpu) {
  return process.pid && process.has_context[gpu] && is_alive(process.pid);
}

// A fault's value; 0 if its holder has ended.
static inline uint64_t fault(uint64_t value, int gpu) {
  int holder = shared()->holder[gpu];
  return !holder || is_alive(holder) ? value : 0;
}

static inline uint64_t used_bytes(int gpu) {
  uint64_t sum = fault(shared()->taken_bytes[gpu], gpu);
  for (auto& process : shared()->processes)
    if (computes_on(process, gpu)) sum += process.allocated_bytes[gpu] + context_bytes();
  return sum;
}

static inline void write_uuid(int gpu, unsigned char* bytes) {
  for (int i = 0; i < 16; i++) bytes[i] = 0xa0 + gpu * 16 + i;
}
