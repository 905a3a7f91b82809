/* Advantages of a whole rollout in one pass over memory, see esper/simic/agent/advantages.py.
 *
 * The recurrence is written once (_advantages_kernel.h) and compiled for each number type and for
 * each instruction set that the compiler can make; which one runs is decided when the module loads.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const void *rewards, *values, *next_values;
    const uint8_t *terminated, *truncated;
    void *advantages, *returns;
    Py_ssize_t n_envs, n_steps;
    double gamma, decay;
} advantage_job;

typedef void (*advantage_kernel)(const advantage_job *);

#define JOIN(x, type, isa) x##_##type##_##isa
#define LANES_2 {0, 1}
#define LANES_4 {0, 1, 2, 3}
#define LANES_8 {0, 1, 2, 3, 4, 5, 6, 7}
#define LANES_16 {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

/* Any machine: 16-byte vectors (SSE2, NEON). */
#define WIDTH 16
#define FIRST_FLAGS(n, from) \
    ({ uint8_t __attribute__((vector_size(n))) flags; memcpy(&flags, from, sizeof flags); flags; })
#define REAL float
#define INT int32_t
#define NAME(x) JOIN(x, float, base)
#define WIDEN(from) __builtin_convertvector(FIRST_FLAGS(4, from), NAME(ints))
#define LANE_NUMBERS LANES_4
#include "_advantages_kernel.h"
#define REAL double
#define INT int64_t
#define NAME(x) JOIN(x, double, base)
#define WIDEN(from) __builtin_convertvector(FIRST_FLAGS(2, from), NAME(ints))
#define LANE_NUMBERS LANES_2
#include "_advantages_kernel.h"
#undef WIDTH

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_WIDE_VECTORS
#include <immintrin.h>
/* The 4, 8 or 16 bytes at an address, in the low part of a register. */
#define BYTES_4(from) _mm_cvtsi32_si128(({ int word; memcpy(&word, from, 4); word; }))
#define BYTES_8(from) _mm_loadl_epi64((const __m128i *)(from))
#define BYTES_16(from) _mm_loadu_si128((const __m128i *)(from))

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define WIDTH 32
#define REAL float
#define INT int32_t
#define NAME(x) JOIN(x, float, avx2)
#define WIDEN(from) ((NAME(ints))_mm256_cvtepu8_epi32(BYTES_8(from)))
#define LANE_NUMBERS LANES_8
#include "_advantages_kernel.h"
#define REAL double
#define INT int64_t
#define NAME(x) JOIN(x, double, avx2)
#define WIDEN(from) ((NAME(ints))_mm256_cvtepu8_epi64(BYTES_4(from)))
#define LANE_NUMBERS LANES_4
#include "_advantages_kernel.h"
#undef WIDTH
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define WIDTH 64
#define REAL float
#define INT int32_t
#define NAME(x) JOIN(x, float, avx512)
#define WIDEN(from) ((NAME(ints))_mm512_cvtepu8_epi32(BYTES_16(from)))
#define LANE_NUMBERS LANES_16
#include "_advantages_kernel.h"
#define REAL double
#define INT int64_t
#define NAME(x) JOIN(x, double, avx512)
#define WIDEN(from) ((NAME(ints))_mm512_cvtepu8_epi64(BYTES_8(from)))
#define LANE_NUMBERS LANES_8
#include "_advantages_kernel.h"
#undef WIDTH
#pragma GCC pop_options
#endif

/* For each instruction set: float and double, time-major and environment-major. */
#define KERNELS_OF(isa)                                                                           \
    {time_major_float_##isa, env_major_float_##isa, time_major_double_##isa,                      \
     env_major_double_##isa}
static const struct {
    const char *name;
    advantage_kernel kernels[4];
} VARIANTS[] = {
    {"base", KERNELS_OF(base)},
#ifdef HAS_WIDE_VECTORS
    {"avx2", KERNELS_OF(avx2)},
    {"avx512", KERNELS_OF(avx512)},
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

/* estimate(rewards, values, next_values, terminated, truncated, advantages, returns: addresses,
 *          n_envs, n_steps, gamma, gae_lambda, is_env_major + 2 * is_double) -> None */
static PyObject *estimate(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[7];
    (void)self;
    if (n_args != 12) {
        PyErr_SetString(PyExc_TypeError, "estimate takes 12 arguments");
        return NULL;
    }
    for (int i = 0; i < 7; i++) {
        at[i] = PyLong_AsVoidPtr(args[i]);
        if (!at[i] && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a tensor without memory has no advantages");
    }
    const double gamma = PyFloat_AsDouble(args[9]);
    const advantage_job job = {
        .rewards = at[0], .values = at[1], .next_values = at[2],
        .terminated = at[3], .truncated = at[4], .advantages = at[5], .returns = at[6],
        .n_envs = PyLong_AsSsize_t(args[7]), .n_steps = PyLong_AsSsize_t(args[8]),
        .gamma = gamma, .decay = gamma * PyFloat_AsDouble(args[10]),
    };
    const advantage_kernel run = VARIANTS[chosen].kernels[PyLong_AsLong(args[11]) & 3];
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    run(&job);
    Py_END_ALLOW_THREADS
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

static PyMethodDef methods[] = {
    {"estimate", (PyCFunction)(void (*)(void))estimate, METH_FASTCALL, "Estimate advantages."},
    {"variants", variants, METH_NOARGS, "Instruction sets that this machine can run, best last."},
    {"choose", choose, METH_O, "Use the variant with this index instead of the best."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_advantages", "Advantages of a whole rollout.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__advantages(void)
{
    detect_variants();
    return PyModule_Create(&module);
}
