/* Action masks of a batch of hosts in one pass over their slots' states.
 *
 * What a slot's own state allows comes in a table that is filled from esper/lifecycle/legality.py,
 * one word for each state code (4 * stage + 2 * aged + at rest), with the two properties that the
 * rule for germinating counts over a host's slots.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Bits of a state's word: bit o says that the state allows op o. */
#define LIVE_BIT 14
#define BLOCKING_BIT 15

/* The sizes and tables of one slot configuration: int64 fields, in the order of MaskTables.plan. */
typedef struct {
    int64_t n_slots, n_heads, n_choices, n_blueprints, n_ops, n_stages;
    int64_t slot_head, blueprint_head, op_head;
    int64_t germinate, slot_ops, seed_limit;
    int64_t state_words, germinable, fits, all_choices; /* addresses */
} mask_plan;

typedef struct {
    const uint8_t *codes; /* [B, S], or NULL when the three arrays below are given */
    const int64_t *stage, *age;
    const uint8_t *at_rest;
} slot_states;

static inline int64_t state_code(const slot_states *states, int64_t i)
{
    if (states->codes) return states->codes[i];
    return 4 * states->stage[i] + 2 * (states->age[i] >= 1) + (states->at_rest[i] != 0);
}

/* Mark all of a row that has no legal choice: nothing reads it, and it must still be drawable. */
static inline void open_if_empty(uint8_t *row, int64_t n)
{
    if (!memchr(row, 1, (size_t)n)) memset(row, 1, (size_t)n);
}

/* Fill one host's choices [H, K] and slot_by_op [O, S]. */
static void fill_host(const mask_plan *plan, const slot_states *states, int64_t host,
                      uint8_t *choices, uint8_t *slot_by_op)
{
    const uint16_t *words = (const uint16_t *)(intptr_t)plan->state_words;
    const uint8_t *germinable = (const uint8_t *)(intptr_t)plan->germinable;
    const uint8_t *fits = (const uint8_t *)(intptr_t)plan->fits; /* NULL: everything fits */
    const int64_t S = plan->n_slots, first = host * S;
    int64_t n_live = 0, n_blocking = 0;
    for (int64_t s = 0; s < S; s++) {
        const uint16_t word = words[state_code(states, first + s)];
        n_live += (word >> LIVE_BIT) & 1;
        n_blocking += (word >> BLOCKING_BIT) & 1;
    }
    const int is_open = n_live < plan->seed_limit && n_blocking == 0;

    memcpy(choices, (const void *)(intptr_t)plan->all_choices,
           (size_t)(plan->n_heads * plan->n_choices));
    uint8_t *slot_row = choices + plan->slot_head * plan->n_choices;
    uint8_t *blueprint_row = choices + plan->blueprint_head * plan->n_choices;
    uint8_t *op_row = choices + plan->op_head * plan->n_choices;
    if (fits) memset(blueprint_row, 0, (size_t)plan->n_blueprints);
    uint32_t of_host = 0;
    for (int64_t s = 0; s < S; s++) {
        uint32_t word = words[state_code(states, first + s)];
        if (!is_open || !germinable[s]) word &= ~((uint32_t)1 << plan->germinate);
        of_host |= word;
        for (int64_t o = 0; o < plan->n_ops; o++) slot_by_op[o * S + s] = (word >> o) & 1;
        slot_row[s] = (word & (uint32_t)plan->slot_ops) != 0;
        if (fits && ((word >> plan->germinate) & 1))
            for (int64_t k = 0; k < plan->n_blueprints; k++)
                blueprint_row[k] |= fits[s * plan->n_blueprints + k];
    }
    for (int64_t o = 0; o < plan->n_ops; o++) op_row[o] = (of_host >> o) & 1;
    open_if_empty(slot_row, S);
    if (fits) open_if_empty(blueprint_row, plan->n_blueprints);
}

/* Return the index of the first slot whose stage does not exist, or -1. */
static int64_t first_bad_stage(const mask_plan *plan, const slot_states *states, int64_t n)
{
    if (states->codes) return -1;
    for (int64_t i = 0; i < n; i++)
        if (states->stage[i] < 0 || states->stage[i] >= plan->n_stages) return i;
    return -1;
}

/* fill(plan, batch, codes, stage, age, at_rest, choices, slot_by_op) -> index of a bad stage or -1;
 * addresses but for batch; codes is 0 when the three arrays are given, and the other way round. */
static PyObject *fill(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    void *at[8];
    (void)self;
    if (n_args != 8) {
        PyErr_SetString(PyExc_TypeError, "fill takes 8 arguments");
        return NULL;
    }
    for (int i = 0; i < 8; i++) at[i] = PyLong_AsVoidPtr(args[i]);
    const Py_ssize_t batch = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (!at[2] && !(at[3] && at[4] && at[5])) {
        PyErr_SetString(PyExc_ValueError, "a tensor without memory has no masks");
        return NULL;
    }

    const mask_plan *plan = at[0];
    const slot_states states = {at[2], at[3], at[4], at[5]};
    const int64_t bad = first_bad_stage(plan, &states, batch * plan->n_slots);
    if (bad < 0)
        for (int64_t host = 0; host < batch; host++)
            fill_host(plan, &states, host,
                      (uint8_t *)at[6] + host * plan->n_heads * plan->n_choices,
                      (uint8_t *)at[7] + host * plan->n_ops * plan->n_slots);
    return PyLong_FromLongLong(bad);
}

static PyMethodDef methods[] = {
    {"fill", (PyCFunction)(void (*)(void))fill, METH_FASTCALL, "Fill a batch's action masks."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_masks", "Action masks of a batch of hosts.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__masks(void) { return PyModule_Create(&module); }
