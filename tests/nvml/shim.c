/* A stand-in for libnvidia-ml.so.1: the part of NVML's C interface that llmobs reaches through pynvml.
 *
 * What the GPUs say is a scenario: lines of "key = value". A key without a section is global; after a line "[0]" keys
 * belong to GPU 0, after "[0/2]" to the third MIG slot of GPU 0. A value that is not there is answered NotSupported.
 * The scenario is given in the process by shim_load(), or as a file named by $NVML_SHIM, which is looked at again
 * every 20 ms. Three kinds of key rule over every function:
 *     fail.FUNCTION = CODE     the function returns CODE          (fail.* = CODE: all functions of that device)
 *     hang.FUNCTION = 1        the function does not return until the scenario no longer says so
 *     slow.FUNCTION = MS       the function takes so long
 * shim_calls() and shim_push_event() let a test count calls and raise events.
 *
 * Variants: -DOLD_DRIVER leaves out what a driver before 525 lacks; -DDRIVER_535 has the process struct of 535.43-535.98.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMED_OUT = 10, VERSION_MISMATCH = 25
};
#define MAX_GPUS 16
#define MAX_SLOTS 8
#define MAX_EVENTS 4096
#define NO_INSTANCE 0xFFFFFFFFu
#define VERSIONED(type, v) ((uint32_t)(sizeof(type) | ((uint32_t)(v) << 24)))
#define EXPORT __attribute__((visibility("default")))

typedef struct { int gpu, slot; char section[16]; } Device;
typedef struct { char *key, *value; } Entry;
typedef struct { Device *device; uint64_t type, data; uint32_t gpu_instance, compute_instance; } Event;
typedef struct { char name[64]; unsigned long calls; } Counter;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device gpus[MAX_GPUS], slots[MAX_GPUS][MAX_SLOTS];
static Entry *entries;
static size_t n_entries;
static char *text;
static int initialized, from_memory, n_counters;
static struct timespec file_time, looked_at;
static Counter counters[256];
static Event events[MAX_EVENTS];
static unsigned events_in, events_out;

/* ---- the scenario ---------------------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b) { return strcmp(((const Entry *)a)->key, ((const Entry *)b)->key); }

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    for (char *end = s + strlen(s); end > s && strchr(" \t\r", end[-1]);) *--end = 0;
    return s;
}

static void replace(char *new_text) { /* takes ownership; the lock is held */
    for (size_t i = 0; i < n_entries; i++) free(entries[i].key);
    free(entries), free(text);
    entries = NULL, n_entries = 0, text = new_text;
    char section[16] = "", *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        line = trim(line);
        if (*line == '[') {
            snprintf(section, sizeof section, "%.*s/", (int)strcspn(line + 1, "]"), line + 1);
            continue;
        }
        char *equals = strchr(line, '=');
        if (*line == '#' || !equals) continue;
        *equals = 0;
        entries = realloc(entries, (n_entries + 1) * sizeof *entries);
        if (asprintf(&entries[n_entries].key, "%s%s", section, trim(line)) < 0) abort();
        entries[n_entries++].value = trim(equals + 1);
    }
    qsort(entries, n_entries, sizeof *entries, by_key);
}

static void refresh(void) { /* the lock is held */
    const char *path = getenv("NVML_SHIM");
    struct timespec now;
    struct stat st;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (from_memory || !path) return;
    if ((now.tv_sec - looked_at.tv_sec) * 1000000000L + now.tv_nsec - looked_at.tv_nsec < 20000000L) return;
    looked_at = now;
    if (stat(path, &st) || !memcmp(&st.st_mtim, &file_time, sizeof file_time)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char *buffer = calloc(1, (size_t)st.st_size + 1);
    buffer[fread(buffer, 1, (size_t)st.st_size, file)] = 0;
    fclose(file);
    file_time = st.st_mtim;
    replace(buffer);
}

/* Copies the value of "SECTION/KEY" (or "KEY" without a device) to `out`; 0 when there is none. */
static int look_up(const Device *device, const char *key, char *out, size_t size) {
    char name[128];
    snprintf(name, sizeof name, "%s%s%s", device ? device->section : "", device ? "/" : "", key);
    Entry wanted = {name, NULL}, *found;
    pthread_mutex_lock(&lock);
    refresh();
    found = n_entries ? bsearch(&wanted, entries, n_entries, sizeof *entries, by_key) : NULL;
    if (found) snprintf(out, size, "%s", found->value);
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

static uint64_t number(const Device *device, const char *key, uint64_t otherwise) {
    char value[64];
    return look_up(device, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    if (ms > 0) nanosleep(&t, NULL);
}

static void count(const char *function) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_counters && strcmp(counters[i].name, function)) i++;
    if (i == n_counters && n_counters < 256) snprintf(counters[n_counters++].name, 64, "%s", function);
    counters[i].calls++;
    pthread_mutex_unlock(&lock);
}

/* What happens on entry to every function: it is counted, hangs, is slow, or fails as the scenario says. */
static int enter(const char *function, const Device *device) {
    char hang[96], slow[96], fail[96];
    snprintf(hang, sizeof hang, "hang.%s", function);
    snprintf(slow, sizeof slow, "slow.%s", function);
    snprintf(fail, sizeof fail, "fail.%s", function);
    count(function);
    while (number(NULL, hang, 0) || (device && number(device, hang, 0))) pause_ms(2);
    pause_ms((long)number(device, slow, device ? number(NULL, slow, 0) : 0));
    if (!initialized && strncmp(function, "nvmlInit", 8)) return UNINITIALIZED;
    uint64_t code = number(NULL, fail, SUCCESS);
    if (device) code = number(device, "fail.*", number(device, fail, code));
    return (int)code;
}
#define ENTER(device) do { int code_ = enter(__func__, (device)); if (code_) return code_; } while (0)

/* ---- for the tests ---------------------------------------------------------------------------------------------- */

EXPORT void shim_load(const char *scenario) {
    pthread_mutex_lock(&lock);
    from_memory = 1;
    replace(strdup(scenario));
    pthread_mutex_unlock(&lock);
}

EXPORT void shim_reset(void) {
    pthread_mutex_lock(&lock);
    initialized = n_counters = 0;
    memset(counters, 0, sizeof counters);
    events_in = events_out = 0;
    pthread_mutex_unlock(&lock);
}

EXPORT unsigned long shim_calls(const char *function) { /* of all functions when it is empty */
    unsigned long calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_counters; i++)
        if (!*function || !strcmp(counters[i].name, function)) calls += counters[i].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

EXPORT int shim_initialized(void) { return initialized; }

EXPORT void shim_push_event(int gpu, uint64_t type, uint64_t data) { /* gpu -1: a device nobody knows */
    static Device stranger = {-1, -1, "stranger"};
    pthread_mutex_lock(&lock);
    events[events_in++ % MAX_EVENTS] =
        (Event){gpu < 0 ? &stranger : &gpus[gpu], type, data, NO_INSTANCE, NO_INSTANCE};
    pthread_mutex_unlock(&lock);
}

/* ---- the library and the system ---------------------------------------------------------------------------------- */

EXPORT int nvmlInitWithFlags(uint32_t flags) {
    (void)flags;
    ENTER(NULL);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        gpus[gpu].gpu = gpu, gpus[gpu].slot = -1;
        snprintf(gpus[gpu].section, sizeof gpus[gpu].section, "%d", gpu);
        for (int slot = 0; slot < MAX_SLOTS; slot++) {
            Device *mig = &slots[gpu][slot];
            mig->gpu = gpu, mig->slot = slot;
            snprintf(mig->section, sizeof mig->section, "%d/%d", gpu, slot);
        }
    }
    initialized++;
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
    ENTER(NULL);
    initialized--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) {
    static __thread char message[32];
    snprintf(message, sizeof message, "shim error %d", code);
    return message;
}

static int text_of(const Device *device, const char *key, char *out, uint32_t size) {
    return look_up(device, key, out, size) ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, uint32_t size) {
    ENTER(NULL);
    return text_of(NULL, "driver_version", out, size);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(NULL);
    *version = (int)number(NULL, "cuda_version", 0);
    return *version ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetCount_v2(uint32_t *gpu_count) {
    ENTER(NULL);
    *gpu_count = (uint32_t)number(NULL, "gpus", 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(uint32_t index, Device **device) {
    if (index >= MAX_GPUS || index >= number(NULL, "gpus", 0)) return INVALID_ARGUMENT;
    ENTER(&gpus[index]);
    *device = &gpus[index];
    return SUCCESS;
}

#ifdef DRIVER_535
EXPORT int nvmlDeviceGetConfComputeMemSizeInfo(Device *device, void *info) {
    (void)info;
    ENTER(device);
    return NOT_SUPPORTED;
}
#endif

/* ---- one value of one device ------------------------------------------------------------------------------------- */

#define TEXT(function, key) \
    EXPORT int function(Device *device, char *out, uint32_t size) { ENTER(device); return text_of(device, key, out, size); }
#define VALUE(function, type, key) \
    EXPORT int function(Device *device, type *out) { \
        char value[64]; \
        ENTER(device); \
        if (!look_up(device, key, value, sizeof value)) return NOT_SUPPORTED; \
        *out = (type)strtoull(value, NULL, 0); \
        return SUCCESS; \
    }
/* One of several values of a kind: the key is followed by ".INDEX". */
#define INDEXED(function, key) \
    EXPORT int function(Device *device, uint32_t index, uint32_t *out) { \
        char name[64], value[64]; \
        ENTER(device); \
        snprintf(name, sizeof name, key ".%u", index); \
        if (!look_up(device, name, value, sizeof value)) return NOT_SUPPORTED; \
        *out = (uint32_t)strtoul(value, NULL, 0); \
        return SUCCESS; \
    }

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
VALUE(nvmlDeviceGetMinorNumber, uint32_t, "minor")
VALUE(nvmlDeviceGetPowerUsage, uint32_t, "power_mw")
VALUE(nvmlDeviceGetEnforcedPowerLimit, uint32_t, "power_limit_mw")
VALUE(nvmlDeviceGetTotalEnergyConsumption, uint64_t, "energy_mj")
VALUE(nvmlDeviceGetFanSpeed, uint32_t, "fan_percent")
VALUE(nvmlDeviceGetPerformanceState, uint32_t, "pstate")
VALUE(nvmlDeviceGetPcieReplayCounter, uint32_t, "pcie_replays")
VALUE(nvmlDeviceGetCurrPcieLinkGeneration, uint32_t, "pcie_gen")
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, uint32_t, "pcie_gen_max")
VALUE(nvmlDeviceGetCurrPcieLinkWidth, uint32_t, "pcie_width")
VALUE(nvmlDeviceGetMaxPcieLinkWidth, uint32_t, "pcie_width_max")
VALUE(nvmlDeviceGetRetiredPagesPendingStatus, uint32_t, "retired_pending")
VALUE(nvmlDeviceGetMaxMigDeviceCount, uint32_t, "mig_slots")
VALUE(nvmlDeviceGetGpuInstanceId, uint32_t, "gi")
VALUE(nvmlDeviceGetComputeInstanceId, uint32_t, "ci")
VALUE(nvmlDeviceGetSupportedEventTypes, uint64_t, "event_types")
VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, "clock_reasons")
INDEXED(nvmlDeviceGetClockInfo, "clock")
INDEXED(nvmlDeviceGetMaxClockInfo, "clock_max")
INDEXED(nvmlDeviceGetTemperature, "temperature")
INDEXED(nvmlDeviceGetTemperatureThreshold, "threshold")

#ifndef OLD_DRIVER
VALUE(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, "clock_reasons")

typedef struct { uint32_t version, sensor; int32_t temperature; } Temperature;
EXPORT int nvmlDeviceGetTemperatureV(Device *device, Temperature *out) {
    char value[64];
    ENTER(device);
    if (out->version != VERSIONED(Temperature, 1)) return VERSION_MISMATCH;
    if (out->sensor || !look_up(device, "temperature.0", value, sizeof value)) return NOT_SUPPORTED;
    out->temperature = atoi(value);
    return SUCCESS;
}

typedef struct { uint32_t version; int32_t margin; } Margin;
EXPORT int nvmlDeviceGetMarginTemperature(Device *device, Margin *out) {
    char value[64];
    ENTER(device);
    if (out->version != VERSIONED(Margin, 1)) return VERSION_MISMATCH;
    if (!look_up(device, "margin", value, sizeof value)) return NOT_SUPPORTED;
    out->margin = atoi(value);
    return SUCCESS;
}
#endif

typedef struct { char legacy[16]; uint32_t domain, bus, device, device_id, subsystem_id; char bus_id[32]; } Pci;
EXPORT int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    ENTER(device);
    memset(out, 0, sizeof *out);
    return text_of(device, "pci", out->bus_id, sizeof out->bus_id);
}

typedef struct { uint64_t total, free, used; } Memory;
EXPORT int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) { /* version 1 counts the reserved part as used */
    char value[64];
    ENTER(device);
    if (!look_up(device, "memory_total", value, sizeof value)) return NOT_SUPPORTED;
    out->total = strtoull(value, NULL, 0);
    out->used = number(device, "memory_used", 0) + number(device, "memory_reserved", 0);
    out->free = out->total - out->used;
    return SUCCESS;
}

#ifndef OLD_DRIVER
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;
EXPORT int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    char value[64];
    ENTER(device);
    if (out->version != VERSIONED(MemoryV2, 2)) return VERSION_MISMATCH;
    if (!look_up(device, "memory_total", value, sizeof value)) return NOT_SUPPORTED;
    out->total = strtoull(value, NULL, 0);
    out->used = number(device, "memory_used", 0);
    out->reserved = number(device, "memory_reserved", 0);
    out->free = number(device, "memory_free", out->total - out->used - out->reserved);
    return SUCCESS;
}
#endif

typedef struct { uint32_t gpu, memory; } Utilization;
EXPORT int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    char value[64];
    ENTER(device);
    if (device->slot >= 0 || !look_up(device, "utilization", value, sizeof value)) return NOT_SUPPORTED;
    out->gpu = (uint32_t)strtoul(value, NULL, 0);
    out->memory = (uint32_t)number(device, "memory_utilization", 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPcieThroughput(Device *device, uint32_t counter, uint32_t *out) {
    ENTER(device);
    pause_ms(20); /* the real call measures for as long */
    *out = (uint32_t)number(device, counter ? "pcie_rx_kbs" : "pcie_tx_kbs", 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(Device *device, uint32_t severity, uint32_t life, uint64_t *out) {
    char name[64], value[64];
    ENTER(device);
    snprintf(name, sizeof name, "ecc.%u.%u", severity, life);
    if (!look_up(device, name, value, sizeof value)) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(Device *device, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending,
                                     uint32_t *failed) {
    char value[64];
    ENTER(device);
    if (!look_up(device, "rows", value, sizeof value)) return NOT_SUPPORTED;
    return sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? SUCCESS : INVALID_ARGUMENT;
}

/* ---- field values: "field.ID" or "field.ID.SCOPE" = "TYPE:VALUE", or "!CODE" for an error of that field alone -------- */

typedef union { double d; uint32_t ui; unsigned long ul; uint64_t ull; int64_t sll; int32_t si; } Value;
typedef struct { uint32_t field, scope; int64_t timestamp, latency; uint32_t type, code; Value value; } Field;
EXPORT int nvmlDeviceGetFieldValues(Device *device, int n, Field *fields) {
    ENTER(device);
    if (number(device, "fields_all_or_nothing", 0))
        for (int i = 0; i < n; i++) {
            char key[64], value[64];
            snprintf(key, sizeof key, "field.%u", fields[i].field);
            if (n > 1 && !look_up(device, key, value, sizeof value)) return INVALID_ARGUMENT;
        }
    for (int i = 0; i < n; i++) {
        Field *f = &fields[i];
        char key[64], value[64], *colon;
        f->code = NOT_SUPPORTED, f->timestamp = (int64_t)time(NULL) * 1000000;
        snprintf(key, sizeof key, "field.%u.%u", f->field, f->scope);
        if (!look_up(device, key, value, sizeof value)) {
            snprintf(key, sizeof key, "field.%u", f->field);
            if (!look_up(device, key, value, sizeof value)) continue;
        }
        if (*value == '!') {
            f->code = (uint32_t)atoi(value + 1);
            continue;
        }
        if (!(colon = strchr(value, ':'))) continue;
        f->type = (uint32_t)atoi(value), f->code = SUCCESS, f->value.ull = 0;
        if (f->type == 0) f->value.d = atof(colon + 1);
        else if (f->type == 5) f->value.si = atoi(colon + 1);
        else if (f->type == 1) f->value.ui = (uint32_t)strtoll(colon + 1, NULL, 0);
        else f->value.ull = strtoull(colon + 1, NULL, 0);
    }
    return SUCCESS;
}

/* ---- processes: "processes" = "PID:BYTES[:GI:CI] …", bytes -1 = not available ---------------------------------------- */

#ifdef DRIVER_535
typedef struct { uint32_t pid; uint64_t bytes; uint32_t gi, ci; uint64_t protected_bytes; } Process;
#else
typedef struct { uint32_t pid; uint64_t bytes; uint32_t gi, ci; } Process;
EXPORT int nvmlDeviceGetRunningProcessDetailList(Device *device, void *list) {
    (void)list;
    ENTER(device);
    return NOT_SUPPORTED;
}
#endif

static int list_processes(const Device *device, const char *key, uint32_t *n, Process *out) {
    char value[4096], *rest = value, *word;
    Process found[64];
    uint32_t have = 0, room = *n;
    *n = 0;
    if (!look_up(device, key, value, sizeof value)) return SUCCESS;
    while ((word = strsep(&rest, " ")) && have < 64) {
        Process p = {0};
        long long bytes = 0;
        p.gi = p.ci = NO_INSTANCE;
        if (sscanf(word, "%u:%lld:%u:%u", &p.pid, &bytes, &p.gi, &p.ci) < 2) continue;
        p.bytes = (uint64_t)bytes;
        found[have++] = p;
    }
    *n = have;
    if (!have) return SUCCESS;
    if (!out || room < have) return INSUFFICIENT_SIZE;
    memcpy(out, found, have * sizeof *found);
    return SUCCESS;
}

#define PROCESSES(function, key) \
    EXPORT int function(Device *device, uint32_t *n, Process *out) { ENTER(device); return list_processes(device, key, n, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics_processes")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps_processes")

/* ---- MIG ---------------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetMigMode(Device *device, uint32_t *current, uint32_t *pending) {
    char value[64];
    ENTER(device);
    if (!look_up(device, "mig_mode", value, sizeof value)) return NOT_SUPPORTED;
    *current = *pending = (uint32_t)strtoul(value, NULL, 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, uint32_t index, Device **out) {
    char uuid[96];
    ENTER(device);
    if (index >= MAX_SLOTS) return INVALID_ARGUMENT;
    if (!look_up(&slots[device->gpu][index], "uuid", uuid, sizeof uuid)) return NOT_FOUND;
    *out = &slots[device->gpu][index];
    return SUCCESS;
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

EXPORT int nvmlEventSetCreate(void **set) {
    ENTER(NULL);
    *set = malloc(1);
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(void *set) {
    ENTER(NULL);
    free(set);
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(Device *device, uint64_t types, void *set) {
    (void)set;
    ENTER(device);
    return types & ~number(device, "event_types", 0) ? NOT_SUPPORTED : SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, Event *out, uint32_t timeout_ms) {
    (void)set;
    for (uint32_t waited = 0;; waited += 5) {
        ENTER(NULL);
        pthread_mutex_lock(&lock);
        int there = events_out != events_in;
        if (there) *out = events[events_out++ % MAX_EVENTS];
        pthread_mutex_unlock(&lock);
        if (there) return SUCCESS;
        if (waited >= timeout_ms) return TIMED_OUT;
        pause_ms(5);
    }
}

/* ---- GPM: "gpm" = 1 where supported, "gpm.ID" = percent or nan; for GPU instance K, "gi.K.gpm.ID" -------------------- */

#ifndef OLD_DRIVER
typedef struct { uint32_t version, supported; } GpmSupport;
EXPORT int nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *out) {
    ENTER(device);
    if (out->version != 1) return VERSION_MISMATCH;
    out->supported = (uint32_t)number(device, "gpm", 0);
    return SUCCESS;
}

typedef struct { Device *device; uint32_t instance; } GpmSample;
EXPORT int nvmlGpmSampleAlloc(GpmSample **sample) {
    ENTER(NULL);
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(GpmSample *sample) {
    ENTER(NULL);
    free(sample);
    return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(Device *device, GpmSample *sample) {
    ENTER(device);
    if (!number(device, "gpm", 0)) return NOT_SUPPORTED;
    *sample = (GpmSample){device, NO_INSTANCE};
    return SUCCESS;
}

EXPORT int nvmlGpmMigSampleGet(Device *device, uint32_t instance, GpmSample *sample) {
    ENTER(device);
    if (!number(device, "gpm", 0)) return NOT_SUPPORTED;
    *sample = (GpmSample){device, instance};
    return SUCCESS;
}

typedef struct { uint32_t id, code; double value; const char *name, *long_name, *unit; } GpmMetric;
typedef struct { uint32_t version, n; GpmSample *older, *newer; GpmMetric metrics[477]; } GpmRequest;
EXPORT int nvmlGpmMetricsGet(GpmRequest *request) {
    ENTER(NULL);
    if (request->version != 1) return VERSION_MISMATCH;
    GpmSample *older = request->older, *newer = request->newer;
    if (older == newer || !older->device || older->device != newer->device || older->instance != newer->instance)
        return INVALID_ARGUMENT;
    for (uint32_t i = 0; i < request->n; i++) {
        GpmMetric *m = &request->metrics[i];
        char key[64], value[64];
        if (newer->instance == NO_INSTANCE) snprintf(key, sizeof key, "gpm.%u", m->id);
        else snprintf(key, sizeof key, "gi.%u.gpm.%u", newer->instance, m->id);
        m->code = look_up(newer->device, key, value, sizeof value) ? SUCCESS : NOT_SUPPORTED;
        m->value = m->code ? 0 : !strcmp(value, "nan") ? (double)NAN : atof(value);
    }
    return SUCCESS;
}
#endif

/* ---- sizes of the structs above, for the test that compares them with pynvml's ------------------------------------- */

EXPORT size_t shim_size(const char *name) {
    static const struct { const char *name; size_t size; } sizes[] = {
        {"c_nvmlMemory_t", sizeof(Memory)}, {"nvmlPciInfo_t", sizeof(Pci)},
        {"c_nvmlUtilization_t", sizeof(Utilization)}, {"c_nvmlFieldValue_t", sizeof(Field)},
        {"c_nvmlProcessInfo_v3_t", sizeof(Process)}, {"c_nvmlEventData_t", sizeof(Event)},
#ifndef OLD_DRIVER
        {"c_nvmlMemory_v2_t", sizeof(MemoryV2)}, {"c_nvmlTemperature_v1_t", sizeof(Temperature)},
        {"c_nvmlMarginTemperature_v1_t", sizeof(Margin)}, {"c_nvmlGpmSupport_t", sizeof(GpmSupport)},
        {"c_nvmlGpmMetric_t", sizeof(GpmMetric)}, {"c_nvmlGpmMetricsGet_t", sizeof(GpmRequest)},
#endif
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name)) return sizes[i].size;
    return 0;
}
