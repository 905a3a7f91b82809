/* Draws all heads of factored actions at once, see esper/simic/policy/distribution.py. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>

/* Draw one head: choice k with probability p[k], among the legal ones.
 *
 * Returns its logarithm, or NaN if no choice is legal or a legal logit is not finite. Without noise
 * (uniform < 0) the most likely choice is taken, the first of several.
 */
static float draw_head(const float *logits, const uint8_t *legal, long n, float uniform,
                       int64_t *choice)
{
    float best = -INFINITY, total = 0.0f, below = 0.0f;
    long first = -1, last = -1;
    for (long k = 0; k < n; k++) {
        if (!legal[k]) continue;
        if (!isfinite(logits[k])) return NAN;
        if (logits[k] > best) { best = logits[k]; first = k; }
        last = k;
    }
    *choice = first < 0 ? 0 : first;
    if (first < 0) return NAN;
    for (long k = 0; k <= last; k++)
        if (legal[k]) total += expf(logits[k] - best);
    if (uniform >= 0.0f) {
        /* The first choice whose cumulative weight is beyond the threshold; rounding may leave it
         * to the last. */
        const float threshold = uniform * total;
        *choice = last;
        for (long k = 0; k < last; k++) {
            if (!legal[k]) continue;
            below += expf(logits[k] - best);
            if (below > threshold) { *choice = k; break; }
        }
    }
    return logits[*choice] - best - logf(total);
}

typedef struct {
    const float *logits;
    const float *uniforms;      /* [N, H], or NULL for the mode */
    const int64_t *sizes;       /* [H] */
    const uint8_t *relevance;   /* [ops, all heads], or NULL if every head always matters */
    const int64_t *conditions;  /* [n, 4]: child, parent, address of the table, its stride */
    uint8_t *legal;             /* [N, H, K], narrowed by the conditions */
    int64_t *actions;           /* [N, H] */
    float *log_probs;           /* [N, H] */
    Py_ssize_t n_steps, n_heads, n_choices, stride, n_conditions, op, n_all_heads;
} draw_job;

/* Draw one head of one step, as the masks are now. */
static void draw_one(const draw_job *job, Py_ssize_t step, Py_ssize_t head)
{
    const Py_ssize_t cell = step * job->n_heads + head;
    const float *logits = job->logits + step * job->stride;
    for (Py_ssize_t before = 0; before < head; before++) logits += job->sizes[before];
    const float uniform = job->uniforms ? job->uniforms[cell] : -1.0f;
    job->log_probs[cell] = draw_head(logits, job->legal + cell * job->n_choices,
                                     job->sizes[head], uniform, &job->actions[cell]);
}

/* Narrow the masks of one step by what the choice of one head rules out in another. */
static void apply_conditions(const draw_job *job, Py_ssize_t step)
{
    const Py_ssize_t first = step * job->n_heads;
    for (Py_ssize_t i = 0; i < job->n_conditions; i++) {
        const int64_t *condition = job->conditions + 4 * i;
        const int64_t child = condition[0], parent = condition[1], n = job->sizes[child];
        const uint8_t *table = (const uint8_t *)(intptr_t)condition[2] + step * condition[3];
        draw_one(job, step, parent);
        if (job->relevance && parent != job->op) {
            draw_one(job, step, job->op);
            if (!job->relevance[job->actions[first + job->op] * job->n_all_heads + child]) continue;
        }
        const uint8_t *allowed = table + job->actions[first + parent] * n;
        uint8_t *legal = job->legal + (first + child) * job->n_choices;
        for (int64_t k = 0; k < n; k++) legal[k] &= allowed[k];
    }
}

/* draw(logits, uniforms or 0, sizes, relevance or 0, conditions or 0, legal, actions, log_probs:
 *      addresses, n_steps, n_heads, n_choices, stride of logits, n_conditions, op, n_all_heads)
 * -> whether every log-probability is finite */
static PyObject *draw(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[8];
    Py_ssize_t n[7];
    int is_sound = 1;
    (void)self;
    if (n_args != 15) {
        PyErr_SetString(PyExc_TypeError, "draw takes 15 arguments");
        return NULL;
    }
    for (int i = 0; i < 8; i++) at[i] = PyLong_AsVoidPtr(args[i]);
    for (int i = 0; i < 7; i++) n[i] = PyLong_AsSsize_t(args[8 + i]);
    if (PyErr_Occurred()) return NULL;
    const draw_job job = {
        .logits = at[0], .uniforms = at[1], .sizes = at[2], .relevance = at[3],
        .conditions = at[4], .legal = at[5], .actions = at[6], .log_probs = at[7],
        .n_steps = n[0], .n_heads = n[1], .n_choices = n[2], .stride = n[3],
        .n_conditions = n[4], .op = n[5], .n_all_heads = n[6],
    };
    for (Py_ssize_t step = 0; step < job.n_steps; step++) {
        apply_conditions(&job, step);
        for (Py_ssize_t head = 0; head < job.n_heads; head++) {
            draw_one(&job, step, head);
            is_sound &= isfinite(job.log_probs[step * job.n_heads + head]) != 0;
        }
    }
    return PyBool_FromLong(is_sound);
}

static PyMethodDef methods[] = {
    {"draw", (PyCFunction)(void (*)(void))draw, METH_FASTCALL, "Draw factored actions."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_draw", "Drawing factored actions.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__draw(void) { return PyModule_Create(&module); }
