/* The masked factored distribution on the CPU: drawing actions, and log-probabilities and entropies
 * of many steps with their gradient. What is computed is documented, and written once more as tensor
 * operations, in esper/simic/policy/distribution.py and sampling.py.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The same two numbers as in masked_distribution.py. */
#define NEGLIGIBLE (-80.0f)
#define LOWEST (-1.0e9f)

/* Steps that are worked on at a time, so that a head's rows stay in the nearest cache. */
#define TILE 128

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_VECTOR_MATH
/* glibc has this for whole vectors; saying so lets the loop over it use that. */
__attribute__((simd("notinbranch"))) float logf(float);
#endif

/* Log-probabilities and entropies of N steps; everything is [rows, N], steps contiguous. */
typedef struct {
    const float *logits, *weight; /* [P, N] */
    const int64_t *actions;       /* [H, N] */
    const int64_t *sizes;         /* [H] */
    int64_t n_heads, n_steps;
    float *log_p, *p;       /* [P, N] */
    float *taken, *entropy; /* [H, N] */
} evaluate_job;

typedef struct {
    const float *log_p, *p;                     /* [P, N] */
    const float *entropy, *d_taken, *d_entropy; /* [H, N] */
    const int64_t *actions;                     /* [H, N] */
    const int64_t *sizes;                       /* [H] */
    int64_t n_heads, n_steps;
    float *d_logits; /* [P, N] */
} gradient_job;

#define NAME(x) x##_base
#include "_distribution_kernel.h"
#ifdef HAS_VECTOR_MATH
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) x##_avx2
#include "_distribution_kernel.h"
#pragma GCC pop_options
#endif

static void (*run_evaluate)(const evaluate_job *) = evaluate_base;
static void (*run_gradient)(const gradient_job *) = gradient_base;

static int read_addresses(PyObject *const *args, Py_ssize_t n_args, void **at, Py_ssize_t expected)
{
    if (n_args != expected) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return -1;
    }
    for (Py_ssize_t i = 0; i < expected; i++) at[i] = PyLong_AsVoidPtr(args[i]);
    return PyErr_Occurred() ? -1 : 0;
}

/* evaluate(logits, weight, actions, sizes, n_heads, n_steps, log_p, p, taken, entropy) -> None */
static PyObject *evaluate(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[10];
    (void)self;
    if (read_addresses(args, n_args, at, 10)) return NULL;
    const evaluate_job job = {at[0], at[1], at[2], at[3], (int64_t)(intptr_t)at[4],
                              (int64_t)(intptr_t)at[5], at[6], at[7], at[8], at[9]};
    Py_BEGIN_ALLOW_THREADS
    run_evaluate(&job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* gradient(log_p, p, entropy, d_taken, d_entropy, actions, sizes, n_heads, n_steps, d_logits)
 * -> None */
static PyObject *gradient(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[10];
    (void)self;
    if (read_addresses(args, n_args, at, 10)) return NULL;
    const gradient_job job = {at[0], at[1], at[2], at[3], at[4], at[5], at[6],
                              (int64_t)(intptr_t)at[7], (int64_t)(intptr_t)at[8], at[9]};
    Py_BEGIN_ALLOW_THREADS
    run_gradient(&job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* What drawing the actions of B environments needs; fields in the order of sampling.py's plan. */
typedef struct {
    int64_t n_heads, n_choices, n_ops, op_head;
    int64_t sizes, starts, relevance; /* addresses: int64 [H], int64 [H], bytes [O, H] */
} draw_plan;

typedef struct {
    int64_t child, parent;
    const uint8_t *table; /* [parent choices, child choices], one for each environment or one */
    int64_t batch_stride;
} condition;

#define MAX_CONDITIONS 8
#define NO_CHOICE (-1)
#define NOT_FINITE (-2)

/* Choose among the legal choices of one head: the likeliest, or by where `uniform` falls in the
 * cumulated probabilities. Return the choice, or why there is none. */
static int64_t choose(const float *logits, const uint8_t *legal, int64_t size, float uniform,
                      int is_mode, float *log_prob)
{
    int64_t best = -1, choice = -1;
    float total = 0, reached = 0;
    for (int64_t k = 0; k < size; k++) {
        if (!legal[k]) continue;
        if (!isfinite(logits[k])) return NOT_FINITE;
        if (best < 0 || logits[k] > logits[best]) best = k;
    }
    if (best < 0) return NO_CHOICE;
    for (int64_t k = 0; k < size; k++)
        if (legal[k]) total += expf(logits[k] - logits[best]);
    if (is_mode) {
        choice = best;
    } else {
        const float target = uniform * total;
        for (int64_t k = 0; k < size; k++) {
            if (!legal[k]) continue;
            const float weight = expf(logits[k] - logits[best]);
            /* Rounding may leave the target unreached; the last possible choice then stands. */
            if (weight > 0) choice = k;
            reached += weight;
            if (reached > target) break;
        }
    }
    *log_prob = logits[choice] - logits[best] - logf(total);
    return choice;
}

/* draw(plan, batch, logits, row_stride, uniform or 0, legal [B, H, K], actions [B, H],
 *      log_probs [B, H], then child, parent, table, batch_stride of each condition)
 * -> 0, or 1 + 2 * (environment * H + head) + (1 if its logits are not finite).
 * `legal` is narrowed in place to what each head was drawn from. */
static PyObject *draw(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[8 + 4 * MAX_CONDITIONS];
    (void)self;
    if (n_args < 8 || (n_args - 8) % 4 || n_args > 8 + 4 * MAX_CONDITIONS) {
        PyErr_SetString(PyExc_TypeError, "draw takes 8 arguments and 4 for each condition");
        return NULL;
    }
    if (read_addresses(args, n_args, at, n_args)) return NULL;
    const draw_plan *plan = at[0];
    const int64_t batch = (int64_t)(intptr_t)at[1], row_stride = (int64_t)(intptr_t)at[3];
    const int64_t *sizes = (const int64_t *)(intptr_t)plan->sizes;
    const int64_t *starts = (const int64_t *)(intptr_t)plan->starts;
    const uint8_t *relevance = (const uint8_t *)(intptr_t)plan->relevance;
    const int64_t n_heads = plan->n_heads, n_conditions = (n_args - 8) / 4;
    condition conditions[MAX_CONDITIONS];
    for (int64_t c = 0; c < n_conditions; c++) {
        void **fields = at + 8 + 4 * c;
        conditions[c] = (condition){(int64_t)(intptr_t)fields[0], (int64_t)(intptr_t)fields[1],
                                    fields[2], (int64_t)(intptr_t)fields[3]};
    }

    for (int64_t b = 0; b < batch; b++) {
        const float *logits = (const float *)at[2] + b * row_stride;
        const float *uniform = at[4] ? (const float *)at[4] + b * n_heads : NULL;
        uint8_t *legal = (uint8_t *)at[5] + b * n_heads * plan->n_choices;
        int64_t *actions = (int64_t *)at[6] + b * n_heads;
        float *log_probs = (float *)at[7] + b * n_heads;
        for (int64_t h = 0; h < n_heads; h++) actions[h] = -1;

#define DRAW(h)                                                                                   \
    do {                                                                                          \
        const int64_t drawn =                                                                     \
            choose(logits + starts[h], legal + (h)*plan->n_choices, sizes[h],                     \
                   uniform ? uniform[h] : 0, !uniform, &log_probs[h]);                            \
        if (drawn < 0)                                                                            \
            return PyLong_FromLongLong(1 + 2 * (b * n_heads + (h)) + (drawn == NOT_FINITE));      \
        actions[h] = drawn;                                                                       \
    } while (0)

        DRAW(plan->op_head);
        for (int64_t c = 0; c < n_conditions; c++) {
            const int64_t parent = conditions[c].parent, child = conditions[c].child;
            if (actions[parent] < 0) DRAW(parent);
            if (parent != plan->op_head && !relevance[actions[plan->op_head] * n_heads + child])
                continue;
            const uint8_t *allowed = conditions[c].table + b * conditions[c].batch_stride +
                                     actions[parent] * sizes[child];
            for (int64_t k = 0; k < sizes[child]; k++)
                legal[child * plan->n_choices + k] &= allowed[k];
        }
        for (int64_t h = 0; h < n_heads; h++)
            if (actions[h] < 0) DRAW(h);
    }
    return PyLong_FromLong(0);
}

static PyMethodDef methods[] = {
    {"evaluate", (PyCFunction)(void (*)(void))evaluate, METH_FASTCALL,
     "Log-probabilities and entropies of many steps."},
    {"gradient", (PyCFunction)(void (*)(void))gradient, METH_FASTCALL, "Their gradient."},
    {"draw", (PyCFunction)(void (*)(void))draw, METH_FASTCALL, "Draw actions."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_distribution", "The masked factored distribution.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__distribution(void)
{
#ifdef HAS_VECTOR_MATH
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        run_evaluate = evaluate_avx2;
        run_gradient = gradient_avx2;
    }
#endif
    return PyModule_Create(&module);
}
