/* 3x3 convolutions of many hosts, each with its own weights: stride 1, padding 1, samples innermost
 * in memory. See esper/populations/stacked_conv.py.
 *
 * Vectors run along the batch, so that one weight multiplies a whole vector and image edges apply to
 * all of its lanes. The loops are written once (_conv3x3_kernel.h) and compiled for each instruction
 * set that the compiler supports; the best one is chosen when the module loads.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_conv3x3.h"

/* Multiplications that make it worth starting another thread. */
#define WORK_OF_A_THREAD (1 << 22)
#define MAX_THREADS 64

/* Any machine: 16-byte vectors (SSE2, NEON). */
#define REAL float
#define LANES (VECTOR_BYTES / (int64_t)sizeof(REAL))
#define NAME(x) x##_base
#define VECTOR_BYTES 16
#include "_conv3x3_kernel.h"
#undef NAME
#undef VECTOR_BYTES

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_WIDE_VECTORS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) x##_avx2
#define VECTOR_BYTES 32
#include "_conv3x3_kernel.h"
#undef NAME
#undef VECTOR_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define NAME(x) x##_avx512
#define VECTOR_BYTES 64
#include "_conv3x3_kernel.h"
#undef NAME
#undef VECTOR_BYTES
#pragma GCC pop_options
#endif

/* A product: the scratch memory of one group of one host, in floats, and its function. */
typedef struct {
    int64_t (*scratch)(const conv_job *);
    void (*run)(const conv_job *, int64_t host, int64_t group, float *scratch);
} conv_product;

#define PRODUCTS_OF(isa)                                                                          \
    {convolve_scratch_##isa, convolve_##isa}, {correlate_scratch_##isa, correlate_all_##isa}
static const struct {
    const char *name;
    conv_product convolve, correlate;
} VARIANTS[] = {
    {"base", PRODUCTS_OF(base)},
#ifdef HAS_WIDE_VECTORS
    {"avx2", PRODUCTS_OF(avx2)},
    {"avx512", PRODUCTS_OF(avx512)},
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

/* Work shared by threads: each takes the next group of a host until none is left. The result does
 * not depend on which thread takes it. */
typedef struct {
    const conv_job *job;
    const conv_product *product;
    int64_t next;
} conv_queue;

typedef struct {
    conv_queue *queue;
    float *scratch;
} conv_worker;

static void *work(void *argument)
{
    const conv_worker *worker = argument;
    conv_queue *queue = worker->queue;
    const int64_t n_groups = queue->job->n_groups, n = queue->job->n_hosts * n_groups;
    for (;;) {
        const int64_t item = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED);
        if (item >= n) return NULL;
        queue->product->run(queue->job, item / n_groups, item % n_groups, worker->scratch);
    }
}

/* Run a job on up to n_threads threads, including the caller; return -1 if out of memory. If a
 * thread cannot be started, the others do its work. */
static int run(const conv_job *job, const conv_product *product, int64_t n_threads)
{
    const int64_t n_items = job->n_hosts * job->n_groups;
    const double per_item = 9.0 * job->n_in * job->n_out * job->height * job->width * job->batch;
    const double most = per_item * n_items / WORK_OF_A_THREAD;
    if (n_threads > most) n_threads = (int64_t)most;
    if (n_threads > n_items) n_threads = n_items;
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    if (n_threads < 1) n_threads = 1;

    const size_t line = 64;
    const size_t size = (product->scratch(job) * sizeof(float) + line) / line * line;
    void *scratch;
    if (posix_memalign(&scratch, line, size * n_threads)) return -1;
    conv_queue queue = {job, product, 0};
    conv_worker workers[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    int64_t n_started = 0;
    for (int64_t i = 0; i < n_threads; i++)
        workers[i] = (conv_worker){&queue, (float *)((char *)scratch + i * size)};
    while (n_started < n_threads - 1 &&
           !pthread_create(&threads[n_started], NULL, work, &workers[n_started + 1]))
        n_started++;
    work(&workers[0]);
    while (n_started) pthread_join(threads[--n_started], NULL);
    free(scratch);
    return 0;
}

/* The addresses and numbers of a call. */
static int read_arguments(PyObject *const *args, Py_ssize_t n_args, void **at, Py_ssize_t expected)
{
    if (n_args != expected) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return -1;
    }
    for (Py_ssize_t i = 0; i < expected; i++) at[i] = PyLong_AsVoidPtr(args[i]);
    return PyErr_Occurred() ? -1 : 0;
}

#define NUMBER(i) ((int64_t)(intptr_t)at[i])
/* The sizes that every call has, from argument i on. */
#define SIZES(i)                                                                                  \
    .n_hosts = NUMBER(i), .n_groups = NUMBER(i + 1), .height = NUMBER(i + 4),                     \
    .width = NUMBER(i + 5), .batch = NUMBER(i + 6)

static PyObject *run_without_the_lock(const conv_job *job, const conv_product *product,
                                      int64_t n_threads)
{
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = run(job, product, n_threads);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* forward(n_threads, sizes (7), x, weight, weight_stride, bias or 0, bias_stride, y) -> None
 * The sizes: hosts, groups, inputs and outputs of a group, height, width, batch. */
static PyObject *forward(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[14];
    (void)self;
    if (read_arguments(args, n_args, at, 14)) return NULL;
    const conv_job job = {
        SIZES(1), .n_in = NUMBER(3), .n_out = NUMBER(4), .input = at[8], .weight = at[9],
        .weight_stride = NUMBER(10), .weight_row = 9 * NUMBER(3), .bias = at[11], .bias_stride = NUMBER(12), .output = at[13],
    };
    return run_without_the_lock(&job, &VARIANTS[chosen].convolve, NUMBER(0));
}

/* input_gradient(n_threads, sizes (7), d_y, weight, weight_stride, d_x) -> None */
static PyObject *input_gradient(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[12];
    (void)self;
    if (read_arguments(args, n_args, at, 12)) return NULL;
    const conv_job job = {
        SIZES(1), .n_in = NUMBER(4), .n_out = NUMBER(3), .input = at[8], .weight = at[9],
        .weight_stride = NUMBER(10), .weight_row = 9 * NUMBER(3), .output = at[11],
        .is_transposed = 1,
    };
    return run_without_the_lock(&job, &VARIANTS[chosen].convolve, NUMBER(0));
}

/* weight_gradient(n_threads, sizes (7), x, d_y, d_weight: contiguous) -> None */
static PyObject *weight_gradient(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[11];
    (void)self;
    if (read_arguments(args, n_args, at, 11)) return NULL;
    const conv_job job = {
        SIZES(1), .n_in = NUMBER(3), .n_out = NUMBER(4), .input = at[8], .d_output = at[9],
        .output = at[10], .weight_row = 9 * NUMBER(3),
    };
    return run_without_the_lock(&job, &VARIANTS[chosen].correlate, NUMBER(0));
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
    {"forward", FAST(forward), "The convolutions."},
    {"input_gradient", FAST(input_gradient), "The gradient of their inputs."},
    {"weight_gradient", FAST(weight_gradient), "The gradient of their weights."},
    {"variants", variants, METH_NOARGS, "Instruction sets that this machine can run, best last."},
    {"choose", choose, METH_O, "Use the variant with this index instead of the best."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_conv3x3", "3x3 convolutions of many hosts.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__conv3x3(void)
{
    detect_variants();
    return PyModule_Create(&module);
}
