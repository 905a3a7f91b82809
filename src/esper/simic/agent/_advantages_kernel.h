/* The advantage recurrence for one number type and one instruction set.
 *
 * Included once for each pair, with what differs between them defined: REAL and its same-sized INT,
 * WIDTH (bytes of a vector register), WIDEN(from) (LANES flags as lanes of INT), LANE_NUMBERS
 * (0, 1, ...) and NAME(x), which makes a name unique.
 */
#define LANES ((Py_ssize_t)(WIDTH / sizeof(REAL)))

typedef REAL NAME(reals) __attribute__((vector_size(WIDTH)));
typedef INT NAME(ints) __attribute__((vector_size(WIDTH)));

#define LOAD(type, from) ({ type loaded; memcpy(&loaded, from, sizeof loaded); loaded; })
#define STORE(to, vector) memcpy(to, &(vector), sizeof(vector))
/* Flags as lanes of all ones or all zeros; `&` with them selects, so a NaN that is not selected
 * is gone, which a multiplication by zero would keep. */
#define KEEP_WHERE(mask, vector) ((NAME(reals))((NAME(ints))(vector) & (mask)))

/* delta = reward + gamma * next_value - value, with no next value after a terminated step. */
#define DELTA(i, value, terminated)                                                              \
    (LOAD(NAME(reals), rewards + (i)) - (value) +                                                \
     gamma * KEEP_WHERE((terminated) == 0, LOAD(NAME(reals), next_values + (i))))

#define SCALAR_DELTA(i)                                                                          \
    (rewards[i] - values[i] + (terminated[i] ? (REAL)0 : gamma * next_values[i]))

#define UNPACK(job)                                                                              \
    const REAL *rewards = (job)->rewards, *values = (job)->values;                               \
    const REAL *next_values = (job)->next_values;                                                \
    const uint8_t *terminated = (job)->terminated, *truncated = (job)->truncated;                \
    REAL *advantages = (job)->advantages, *returns = (job)->returns;                             \
    const Py_ssize_t E = (job)->n_envs, T = (job)->n_steps;                                      \
    const REAL gamma = (REAL)(job)->gamma, decay = (REAL)(job)->decay

/* One step of LANES environments that lie side by side; returns their advantages. */
#define STEP(i, carry)                                                                           \
    ({                                                                                           \
        const NAME(ints) ended = WIDEN(terminated + (i)), cut = WIDEN(truncated + (i));          \
        const NAME(reals) value = LOAD(NAME(reals), values + (i));                               \
        const NAME(reals) advantage =                                                            \
            DELTA(i, value, ended) + decay * KEEP_WHERE((ended | cut) == 0, carry);              \
        const NAME(reals) target = advantage + value;                                            \
        STORE(advantages + (i), advantage);                                                      \
        STORE(returns + (i), target);                                                            \
        advantage;                                                                               \
    })

/* The same for environments that do not fill a vector; the last step has nothing to carry. */
#define SCALAR_STEP(i, has_next, next)                                                           \
    do {                                                                                         \
        REAL advantage = SCALAR_DELTA(i);                                                        \
        if ((has_next) && !(terminated[i] | truncated[i])) advantage += decay * (next);          \
        advantages[i] = advantage;                                                               \
        returns[i] = advantage + values[i];                                                      \
    } while (0)

/* [T, E] in memory: step t of all environments is contiguous. */
static void NAME(time_major)(const advantage_job *job)
{
    UNPACK(job);
    const Py_ssize_t full = E - E % LANES;
    /* A narrow rollout keeps its carry in registers from step to step. A wide one goes row by
     * row, so that memory is read in the order it lies in, and reads the carry back. */
    if (E <= 8 * LANES) {
        for (Py_ssize_t e = 0; e < full; e += LANES) {
            NAME(reals) carry = {0};
            for (Py_ssize_t t = T - 1; t >= 0; t--) carry = STEP(t * E + e, carry);
        }
    } else {
        for (Py_ssize_t e = 0; e < full; e += LANES)
            STEP((T - 1) * E + e, ((NAME(reals)){0}));
        for (Py_ssize_t t = T - 2; t >= 0; t--)
            for (Py_ssize_t e = 0; e < full; e += LANES) {
                const Py_ssize_t i = t * E + e;
                STEP(i, LOAD(NAME(reals), advantages + i + E));
            }
    }
    for (Py_ssize_t t = T - 1; t >= 0; t--)
        for (Py_ssize_t e = full; e < E; e++)
            SCALAR_STEP(t * E + e, t < T - 1, advantages[t * E + e + E]);
}

/* [E, T] in memory: all steps of an environment are contiguous, so the lanes are LANES consecutive
 * steps here. Rounds of doubling reach sum what each lane owes to the later ones; then what comes
 * from beyond the vector is added, decayed by the distance to it. */
static void NAME(env_major)(const advantage_job *job)
{
    UNPACK(job);
    const NAME(ints) lane = (NAME(ints))LANE_NUMBERS;
    const NAME(reals) zeros = {0};
    NAME(reals) decay_to_end; /* decay ** (LANES - lane) */
    REAL power = 1;
    for (Py_ssize_t k = LANES - 1; k >= 0; k--) decay_to_end[k] = power *= decay;

    for (Py_ssize_t e = 0; e < E; e++) {
        NAME(reals) carry = {0};
        Py_ssize_t end = T;
#ifndef __clang__ /* which has no __builtin_shuffle: every step is done one by one below */
        for (; end > 0 && T >= LANES; end -= LANES) {
            /* The first vector may reach into the second: lanes that are done keep their value. */
            const Py_ssize_t t = end < LANES ? 0 : end - LANES, i = e * T + t;
            const NAME(ints) ended = WIDEN(terminated + i), cut = WIDEN(truncated + i);
            const NAME(reals) value = LOAD(NAME(reals), values + i);
            NAME(reals) advantage = DELTA(i, value, ended);
            NAME(ints) goes_on = (ended | cut) == 0;
            if (end < LANES) {
                const NAME(ints) is_fresh = lane < (INT)end;
                advantage = KEEP_WHERE(is_fresh, advantage) +
                            KEEP_WHERE(~is_fresh, LOAD(NAME(reals), advantages + i));
                goes_on &= is_fresh;
            }
            REAL weight = decay;
#pragma GCC unroll 4
            for (int reach = 1; reach < LANES; reach *= 2) {
                const NAME(reals) later = __builtin_shuffle(advantage, zeros, lane + reach);
                advantage += weight * KEEP_WHERE(goes_on, later);
                goes_on &= __builtin_shuffle(goes_on, ~(NAME(ints)){0}, lane + reach);
                weight *= weight;
            }
            advantage += decay_to_end * KEEP_WHERE(goes_on, carry);
            const NAME(reals) target = advantage + value;
            STORE(advantages + i, advantage);
            STORE(returns + i, target);
            carry = advantage[0] - zeros;
        }
#endif
        for (Py_ssize_t t = end - 1; t >= 0; t--) {
            const Py_ssize_t i = e * T + t;
            SCALAR_STEP(i, t < T - 1, advantages[i + 1]);
        }
    }
}

#undef LANES
#undef LOAD
#undef STORE
#undef KEEP_WHERE
#undef DELTA
#undef SCALAR_DELTA
#undef UNPACK
#undef STEP
#undef SCALAR_STEP
#undef REAL
#undef INT
#undef NAME
#undef WIDEN
#undef LANE_NUMBERS
