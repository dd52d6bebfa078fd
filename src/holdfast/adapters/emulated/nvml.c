/* An NVML library over emulated GPUs. Loaded by NVIDIA's own Python binding (nvidia-ml-py) in place of the driver's.
 *
 * The GPUs are what stands in the file `state`, one folder above this library; it is mapped, so that a fault written by
 * a drill is seen by the next call. The layout is that of `layout.py`; a test compares the two. Return codes are NVML's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GPUS_MAX 16
#define LINKS_MAX 18
#define XIDS_MAX 16
#define MAGIC 0x3155504746444c48ULL

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
       GPU_LOST = 15, MEMORY = 20, UNKNOWN = 999 };
enum { MODE_WELL = 0, MODE_NO_DRIVER = 1, MODE_HANG = 2, MODE_GARBAGE = 3, MODE_LOADING = 4, MODE_REFUSED = 5 };

struct link { uint32_t active; uint32_t spare; uint64_t crc_flit, crc_data, replay, recovery; };

struct gpu {
    char name[96], uuid[96], serial[32], bus_id[32];
    uint32_t domain, bus, device, pci_device;
    uint32_t lost; /* an NVML return code that every call about this GPU gives; 0: none */
    uint32_t temperature, slowdown_c, shutdown_c, memory_c;
    uint32_t power_mw, power_limit_mw;
    uint32_t pcie_gen, pcie_gen_max, pcie_width, pcie_width_max, pcie_replay;
    uint32_t remap_corrected, remap_uncorrected, remap_pending, remap_failed;
    uint32_t retired_pending, recovery_action, utilization, memory_utilization, link_count;
    uint32_t xid_count; /* how many were ever reported; the newest XIDS_MAX are kept */
    uint32_t xids[XIDS_MAX];
    uint64_t throttle;
    uint64_t ecc[2][2]; /* [corrected, uncorrected][volatile, aggregate] */
    uint64_t memory_total, memory_used;
    struct link links[LINKS_MAX];
};

struct state {
    uint64_t magic;
    uint32_t size, count, mode, spare;
    char driver[80];
    struct gpu gpus[GPUS_MAX];
};

struct event_set { uint32_t seen[GPUS_MAX]; };
struct event_data { struct gpu *device; unsigned long long type, data; unsigned int gi, ci; };
struct pci_info { char legacy[16]; unsigned domain, bus, device, pci_device, subsystem; char bus_id[32]; };
struct field_value { unsigned field, scope; long long at, latency; unsigned kind; int result;
                     union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; } value; };
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };

static volatile struct state *S;

static void pause_ms(long ms) { struct timespec t = {ms / 1000, (ms % 1000) * 1000000L}; nanosleep(&t, NULL); }
static int map_state(void) {
    Dl_info me;
    char path[4096];
    if (S) return OK;
    const char *named = getenv("HOLDFAST_EMULATED_STATE");
    if (named && *named) snprintf(path, sizeof path, "%s", named);
    else {
        if (!dladdr((void *)map_state, &me) || !me.dli_fname) return UNKNOWN;
        const char *slash = strrchr(me.dli_fname, '/');
        snprintf(path, sizeof path, "%.*s/../state", slash ? (int)(slash - me.dli_fname) : 1, slash ? me.dli_fname : ".");
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return DRIVER_NOT_LOADED;
    struct stat found;
    if (fstat(fd, &found) || found.st_size < (off_t)sizeof(struct state)) { close(fd); return UNKNOWN; }
    void *at = mmap(NULL, sizeof(struct state), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return UNKNOWN;
    if (((struct state *)at)->magic != MAGIC || ((struct state *)at)->size != sizeof(struct state)) {
        munmap(at, sizeof(struct state));
        return UNKNOWN;
    }
    S = at;
    return OK;
}

static int enter(void) {
    if (!S) return UNINITIALIZED;
    while (S->mode == MODE_HANG) pause_ms(50);
    if (S->mode == MODE_REFUSED) return NO_PERMISSION;
    return S->mode == MODE_NO_DRIVER ? DRIVER_NOT_LOADED : OK;
}
static int about(struct gpu *g) {
    int code = enter();
    if (code) return code;
    if (!g) return INVALID;
    return g->lost ? (int)g->lost : OK;
}
static unsigned odd(unsigned value) { return S->mode == MODE_GARBAGE ? 0xdeadbeefu : value; }

#define ABOUT(g) do { int code_ = about(g); if (code_) return code_; } while (0)
#define GIVES(name, type, expression) \
    int name(struct gpu *g, type *out) { ABOUT(g); if (!out) return INVALID; *out = (expression); return OK; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; int code = map_state(); return code ? code : enter(); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return S ? OK : UNINITIALIZED; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}
static int text(char *out, unsigned size, const char *value) {
    if (!out) return INVALID;
    snprintf(out, size, "%s", value);
    return OK;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { int c = enter(); return c ? c : text(out, size, (char *)S->driver); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { int c = enter(); return c ? c : text(out, size, "12.emulated"); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { int c = enter(); if (c) return c; *out = 12080; return OK; }
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
    int code = enter();
    if (code) return code;
    *out = S->mode == MODE_LOADING ? 0 : odd(S->count);
    return OK;
}
int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **out) {
    int code = enter();
    if (code) return code;
    if (index >= S->count || S->mode == MODE_LOADING) return INVALID;
    *out = (struct gpu *)&S->gpus[index];
    return (*out)->lost ? (int)(*out)->lost : OK;
}
int nvmlDeviceGetHandleByIndex(unsigned index, struct gpu **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
static int find(struct gpu **out, const char *uuid, const char *bus_id) {
    int code = enter();
    if (code) return code;
    for (unsigned i = 0; i < S->count; i++) {
        struct gpu *g = (struct gpu *)&S->gpus[i];
        if ((uuid && !strcmp(g->uuid, uuid)) || (bus_id && strcasestr(g->bus_id, bus_id))) {
            *out = g;
            return g->lost ? (int)g->lost : OK;
        }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **out) { return find(out, uuid, NULL); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct gpu **out) { return find(out, NULL, bus_id); }
int nvmlDeviceGetIndex(struct gpu *g, unsigned *out) { ABOUT(g); *out = (unsigned)(g - (struct gpu *)S->gpus); return OK; }
int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *out) { return nvmlDeviceGetIndex(g, out); }
int nvmlDeviceGetName(struct gpu *g, char *out, unsigned size) { ABOUT(g); return text(out, size, g->name); }
int nvmlDeviceGetUUID(struct gpu *g, char *out, unsigned size) { ABOUT(g); return text(out, size, g->uuid); }
int nvmlDeviceGetSerial(struct gpu *g, char *out, unsigned size) { ABOUT(g); return text(out, size, g->serial); }
int nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci_info *out) {
    ABOUT(g);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", g->bus_id);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", g->domain & 0xffff, g->bus & 0xff, g->device & 0xff);
    out->domain = g->domain; out->bus = g->bus; out->device = g->device; out->pci_device = g->pci_device;
    return OK;
}

int nvmlDeviceGetTemperature(struct gpu *g, unsigned sensor, unsigned *out) {
    ABOUT(g);
    if (sensor) return INVALID;
    *out = odd(g->temperature);
    return OK;
}
int nvmlDeviceGetTemperatureThreshold(struct gpu *g, unsigned which, unsigned *out) {
    ABOUT(g);
    if (which == 0) *out = g->shutdown_c;
    else if (which == 1) *out = g->slowdown_c;
    else if (which == 3) *out = g->slowdown_c - 2;
    else return NOT_SUPPORTED;
    return OK;
}
GIVES(nvmlDeviceGetPowerUsage, unsigned, odd(g->power_mw))
GIVES(nvmlDeviceGetEnforcedPowerLimit, unsigned, g->power_limit_mw)
GIVES(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, g->throttle)
GIVES(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, g->throttle)
GIVES(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, odd(g->pcie_gen))
GIVES(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, g->pcie_gen_max)
GIVES(nvmlDeviceGetCurrPcieLinkWidth, unsigned, odd(g->pcie_width))
GIVES(nvmlDeviceGetMaxPcieLinkWidth, unsigned, g->pcie_width_max)
GIVES(nvmlDeviceGetPcieReplayCounter, unsigned, g->pcie_replay)
GIVES(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, g->retired_pending)
GIVES(nvmlDeviceGetSupportedEventTypes, unsigned long long, 8ULL)
int nvmlDeviceGetPersistenceMode(struct gpu *g, unsigned *out) { ABOUT(g); *out = 1; return OK; }
int nvmlDeviceGetEccMode(struct gpu *g, unsigned *now, unsigned *next) { ABOUT(g); *now = *next = 1; return OK; }
int nvmlDeviceGetTotalEccErrors(struct gpu *g, unsigned kind, unsigned since, unsigned long long *out) {
    ABOUT(g);
    if (kind > 1 || since > 1) return INVALID;
    *out = S->mode == MODE_GARBAGE ? ~0ULL : g->ecc[kind][since];
    return OK;
}
int nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ABOUT(g);
    *corrected = g->remap_corrected; *uncorrected = g->remap_uncorrected;
    *pending = g->remap_pending; *failed = g->remap_failed;
    return OK;
}
int nvmlDeviceGetUtilizationRates(struct gpu *g, struct utilization *out) {
    ABOUT(g);
    out->gpu = g->utilization; out->memory = g->memory_utilization;
    return OK;
}
int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *out) {
    ABOUT(g);
    out->total = g->memory_total; out->used = g->memory_used; out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(struct gpu *g, struct memory_v2 *out) {
    ABOUT(g);
    out->total = g->memory_total; out->reserved = 0; out->used = g->memory_used; out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *count, struct process *out) {
    ABOUT(g);
    (void)out;
    *count = 0;
    return OK;
}

int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *out) {
    ABOUT(g);
    if (link >= g->link_count) return link < LINKS_MAX ? NOT_SUPPORTED : INVALID;
    *out = g->links[link].active;
    return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(struct gpu *g, unsigned link, unsigned counter, unsigned long long *out) {
    ABOUT(g);
    if (link >= g->link_count) return NOT_SUPPORTED;
    switch (counter) {
    case 0: *out = g->links[link].replay; return OK;
    case 1: *out = g->links[link].recovery; return OK;
    case 2: *out = g->links[link].crc_flit; return OK;
    case 3: *out = g->links[link].crc_data; return OK;
    default: return NOT_SUPPORTED;
    }
}
int nvmlDeviceGetFieldValues(struct gpu *g, int count, struct field_value *values) {
    ABOUT(g);
    for (int i = 0; i < count; i++) {
        values[i].result = OK;
        values[i].kind = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
        if (values[i].field == 230) values[i].value.u = g->recovery_action; /* GET_GPU_RECOVERY_ACTION */
        else if (values[i].field == 82) values[i].value.u = g->memory_c;    /* MEMORY_TEMP */
        else values[i].result = NOT_SUPPORTED;
    }
    return OK;
}

int nvmlEventSetCreate(struct event_set **out) {
    int code = enter();
    if (code) return code;
    *out = calloc(1, sizeof **out);
    return *out ? OK : MEMORY;
}
int nvmlEventSetFree(struct event_set *set) { free(set); return OK; }
int nvmlDeviceRegisterEvents(struct gpu *g, unsigned long long kinds, struct event_set *set) {
    ABOUT(g);
    if (!set || (kinds & ~8ULL)) return NOT_SUPPORTED;
    set->seen[g - (struct gpu *)S->gpus] = g->xid_count;
    return OK;
}
int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
    if (!set || !out) return INVALID;
    for (unsigned waited = 0;; waited += 10) {
        int code = enter();
        if (code) return code;
        for (unsigned i = 0; i < S->count && i < GPUS_MAX; i++) {
            struct gpu *g = (struct gpu *)&S->gpus[i];
            if (g->xid_count == set->seen[i]) continue;
            if (g->xid_count - set->seen[i] > XIDS_MAX) set->seen[i] = g->xid_count - XIDS_MAX;
            memset(out, 0, sizeof *out);
            out->device = g; out->type = 8; out->data = g->xids[set->seen[i]++ % XIDS_MAX];
            out->gi = out->ci = 0xffffffffu;
            return OK;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        pause_ms(10);
    }
}
unsigned long holdfast_emulated_state_size(void) { return sizeof(struct state); }
