/* Whole epochs of hosts made of linear layers and convolutions. Each host is trained from its first batch to its last
 * before the next, so that it stays in cache. See esper/populations/vector_hosts.py.
 *
 * A host is given as a program: a list of ops on values, with the parameters that they read. The
 * loops are written once (_vector_hosts_*.h) and compiled for each instruction set that the compiler
 * supports, in both precisions; the best one is chosen when the module loads.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_conv3x3.h"

#define MAX_VALUES 512
#define MAX_PARAMETERS 512
#define MAX_SAMPLES 256
#define JUDGED_AT_ONCE 64
/* Rows of a product that are summed in registers at a time, two vectors each. */
#define MAX_ROWS 6
#define MAX_THREADS 64
#define NORMAL_PEAK 0.39894228040143267794 /* of the normal density */

/* Prevents the compiler from fusing a multiplication and an addition. */
#if defined(__x86_64__)
#define ROUNDED(product) __asm__("" : "+x"(product))
#elif defined(__aarch64__)
#define ROUNDED(product) __asm__("" : "+w"(product))
#else
#define ROUNDED(product) (void)(product)
#endif

/* In the order of OpKind in vector_programs.py. */
enum {
    LINEAR, NORM, RELU, GELU, TANH, GATE, ZERO, ADD, PRODUCT, SCALE, PASS, BLEND, CONV, BATCH_NORM,
    POOL,
};
/* In the order of OPTIMIZERS in config/population.py. */
enum { SGD, ADAM, ADAMW };
/* As in find_objective in vector_hosts.py. */
enum { CROSS_ENTROPY, SQUARED_ERROR };

/* An op reads the values `from` and `other` and writes `to`; a detached one sends no gradient to
 * `from`. Some have parameters (bias: -1 for none), a slot whose alpha they read (-1 for `number`),
 * or numbers. Those on feature maps also have the maps' size, the number of groups, where in the
 * host's memory running statistics begin, or how many numbers in a row share a factor. */
typedef struct {
    int64_t kind, to, from, other, weight, bias, is_detached, slot;
    int64_t height, width, n_groups, mean, variance, repeat;
    double number, momentum;
} op;

/* A matrix, or a vector as a single row: where it begins in a host's memory, its size, the column of
 * its gradient norm, the index of its step count, and the factor on its learning rate. */
typedef struct {
    int64_t offset, n_rows, n_columns, column, index;
    double factor;
} parameter;

/* The first value is the input. `plane` is the number of all parameters of a host. */
typedef struct {
    int64_t n_values, n_parameters, n_ops, output, plane;
    const int64_t *sizes;
    const parameter *parameters;
    const op *ops;
} program;

typedef struct {
    int64_t kind, objective;
    double weight_decay, momentum, beta1, beta2, eps;
} rule;

/* One host's work. Its memory holds the parameters, then each moment, `plane` numbers apart, then
 * buffers; the step count of each parameter is apart. The targets are classes, int64, or for the
 * squared error as many numbers as the host has outputs. An evaluation has its first sample in
 * `numbers`, the number of samples in `n_batches` and two results in `losses`. */
typedef struct {
    const program *plan;
    const void *inputs, *targets;
    const int64_t *numbers;
    int64_t n_batches, batch, n_columns; /* columns of `squares` */
    double *losses, *squares;
    const double *alphas;
    void *memory;
    float *steps;
    const rule *how;
    double rate;
} job;

_Static_assert(sizeof(job) == 14 * 8 && sizeof(parameter) == 6 * 8 && sizeof(op) == 16 * 8 &&
                   sizeof(program) == 8 * 8 && sizeof(rule) == 7 * 8,
               "the fields are as wide as those of the tables in Python");

/* tanh within two units in the last place, without calls, so that loops over it use vectors. The
 * polynomials are those of Cephes. */
ALWAYS_INLINE float fast_tanh(float x)
{
    const float size = fabsf(x), square = x * x, most = size > 10 ? 10 : size;
    const int32_t n = (int32_t)(most * 2.88539008f + 0.5f);  /* exp(2 |x|) = 2^n exp(rest) */
    const float rest = (2 * most - n * 0.693359375f) + n * 2.12194440e-4f;
    union { uint32_t bits; float number; } power = {(uint32_t)(n + 127) << 23};
    float series = 1.9875691500e-4f;
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = (series * rest * rest + rest + 1) * power.number;
    const float large = 1 - 2 / (series + 1);
    float small = -5.70498872745e-3f;
    small = small * square + 2.06390887954e-2f;
    small = small * square - 5.37397155531e-2f;
    small = small * square + 1.33314422036e-1f;
    small = small * square - 3.33332819422e-1f;
    small = small * square * size + size;
    return copysignf(size < 0.625f ? small : large, x);
}

/* Any machine: 16-byte vectors (SSE2, NEON). */
#define ISA base
#define VECTOR_BYTES 16
#include "_vector_hosts_precisions.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_WIDE_VECTORS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define VECTOR_BYTES 32
#include "_vector_hosts_precisions.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define ISA avx512
#define VECTOR_BYTES 64
#include "_vector_hosts_precisions.h"
#pragma GCC pop_options
#endif

/* A function of one host, and the bytes of scratch memory that it needs. */
typedef struct {
    int64_t (*scratch)(const job *);
    void (*run)(const job *, void *scratch);
} task;

/* By task (train, evaluate) and by precision (single, double). */
#define TASK(what, isa, real) {what##_scratch_##isa##_##real, what##_##isa##_##real}
#define TASKS_OF(isa)                                                                             \
    {                                                                                             \
        {TASK(train, isa, float), TASK(train, isa, double)},                                      \
        {TASK(judge, isa, float), TASK(judge, isa, double)},                                      \
    }
static const struct {
    const char *name;
    task tasks[2][2];
} VARIANTS[] = {
    {"base", TASKS_OF(base)},
#ifdef HAS_WIDE_VECTORS
    {"avx2", TASKS_OF(avx2)},
    {"avx512", TASKS_OF(avx512)},
#endif
};

static int n_supported = 1;
static int chosen = 0;

static void detect_variants(void)
{
#ifdef HAS_WIDE_VECTORS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        n_supported = 2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
            n_supported = 3;
    }
#endif
    chosen = n_supported - 1;
}

/* The remaining hosts, and one thread's scratch memory. */
typedef struct {
    const task *what;
    const job *jobs;
    int64_t n_jobs, next;
} queue;

typedef struct {
    queue *all;
    void *scratch;
} worker;

static void *work(void *argument)
{
    const worker *own = argument;
    queue *all = own->all;
    for (;;) {
        const int64_t index = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED);
        if (index >= all->n_jobs) return NULL;
        all->what->run(&all->jobs[index], own->scratch);
    }
}

/* Run all jobs on up to n_threads threads, including the caller; return -1 if out of memory. If a
 * thread cannot be started, the others do its work. */
static int run(queue *all, int64_t n_threads)
{
    const size_t line = 64;
    int64_t most = 0;
    for (int64_t i = 0; i < all->n_jobs; i++) {
        const int64_t size = all->what->scratch(&all->jobs[i]);
        if (size > most) most = size;
    }
    if (n_threads > all->n_jobs) n_threads = all->n_jobs;
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    if (n_threads < 1) n_threads = 1;
    void *scratch;
    const size_t size = ((size_t)most + line) / line * line;
    if (posix_memalign(&scratch, line, size * n_threads)) return -1;
    worker workers[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    int64_t n_started = 0;
    for (int64_t i = 0; i < n_threads; i++)
        workers[i] = (worker){all, (char *)scratch + i * size};
    while (n_started < n_threads - 1 &&
           !pthread_create(&threads[n_started], NULL, work, &workers[n_started + 1]))
        n_started++;
    work(&workers[0]);
    while (n_started) pthread_join(threads[--n_started], NULL);
    free(scratch);
    return 0;
}

/* run(what: 0 train, 1 evaluate; is_double, n_threads, n_jobs, jobs) -> None */
static PyObject *run_jobs(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[5];
    int failed;
    (void)self;
    if (n_args != 5) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < 5; i++) at[i] = PyLong_AsVoidPtr(args[i]);
    if (PyErr_Occurred()) return NULL;
    queue all = {
        &VARIANTS[chosen].tasks[at[0] != NULL][at[1] != NULL], at[4], (intptr_t)at[3], 0,
    };
    Py_BEGIN_ALLOW_THREADS
    failed = run(&all, (intptr_t)at[2]);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* variants() -> names of the instruction sets that this machine can run, best last */
static PyObject *variants(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    PyObject *names = PyList_New(n_supported);
    for (int i = 0; names && i < n_supported; i++)
        PyList_SetItem(names, i, PyUnicode_FromString(VARIANTS[i].name));
    return names;
}

/* choose(index into variants()) -> None */
static PyObject *choose(PyObject *self, PyObject *index)
{
    const long wanted = PyLong_AsLong(index);
    (void)self;
    if (PyErr_Occurred()) return NULL;
    if (wanted < 0 || wanted >= n_supported) {
        PyErr_SetString(PyExc_IndexError, "no such variant on this machine");
        return NULL;
    }
    chosen = (int)wanted;
    Py_RETURN_NONE;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
static PyMethodDef methods[] = {
    {"run", FAST(run_jobs), "Train or evaluate hosts."},
    {"variants", variants, METH_NOARGS, "Instruction sets that this machine can run, best last."},
    {"choose", choose, METH_O, "Use the variant with this index instead of the best."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_vector_hosts", "Epochs of hosts.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__vector_hosts(void)
{
    detect_variants();
    return PyModule_Create(&module);
}
