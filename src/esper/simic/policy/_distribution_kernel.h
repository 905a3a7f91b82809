/* Log-probabilities, entropies and their gradient for one instruction set, named by NAME(x).
 *
 * Every inner loop runs along steps, which lie side by side, and has no branch: the compiler turns
 * each into vector instructions.
 */

/* exp(x) for x in [NEGLIGIBLE, 0], within two units in the last place: a power of two times a
 * polynomial of what is left. Plain arithmetic, so that a loop over it becomes vector code. */
static inline float NAME(exp_of_negative)(float x)
{
    const float rounder = 12582912.0f; /* 1.5 * 2**23: adding it rounds to a whole number */
    const float whole = (x * 1.442695041f + rounder) - rounder;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float series = 1.0f / 5040.0f;
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    const int32_t bits = ((int32_t)whole + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return series * power;
}

/* One head of up to TILE steps: rows of `size` choices, `stride` apart. */
static inline void NAME(evaluate_head)(const float *restrict logits, const float *restrict weight,
                                       float *restrict log_p, float *restrict p,
                                       float *restrict entropy, int64_t size, int64_t stride,
                                       int64_t n)
{
    float best[TILE], total[TILE];
    for (int64_t i = 0; i < n; i++) best[i] = LOWEST;
    for (int64_t k = 0; k < size; k++)
        for (int64_t i = 0; i < n; i++) {
            const float w = weight[k * stride + i], logit = logits[k * stride + i];
            const float x = w != 0 ? logit : LOWEST;
            best[i] = x > best[i] ? x : best[i];
        }
    for (int64_t i = 0; i < n; i++) total[i] = 0;
    for (int64_t k = 0; k < size; k++)
        for (int64_t i = 0; i < n; i++) {
            const float w = weight[k * stride + i], logit = logits[k * stride + i];
            float x = (w != 0 ? logit : LOWEST) - best[i];
            x = x < LOWEST ? LOWEST : x; /* this way round a NaN stays one, and is noticed */
            const float e = w * NAME(exp_of_negative)(x < NEGLIGIBLE ? NEGLIGIBLE : x);
            log_p[k * stride + i] = x;
            p[k * stride + i] = e;
            total[i] += e;
        }
    for (int64_t i = 0; i < n; i++) {
        best[i] = logf(total[i]);
        total[i] = 1 / total[i];
        entropy[i] = 0;
    }
    for (int64_t k = 0; k < size; k++)
        for (int64_t i = 0; i < n; i++) {
            const float q = log_p[k * stride + i] - best[i];
            const float share = p[k * stride + i] * total[i];
            log_p[k * stride + i] = q;
            p[k * stride + i] = share;
            entropy[i] -= share * q;
        }
}

static void NAME(evaluate)(const evaluate_job *job)
{
    const int64_t N = job->n_steps;
    for (int64_t first = 0; first < N; first += TILE) {
        const int64_t n = N - first < TILE ? N - first : TILE;
        int64_t row = first;
        for (int64_t h = 0; h < job->n_heads; h++) {
            NAME(evaluate_head)(job->logits + row, job->weight + row, job->log_p + row,
                                job->p + row, job->entropy + h * N + first, job->sizes[h], N, n);
            for (int64_t i = 0; i < n; i++)
                job->taken[h * N + first + i] =
                    job->log_p[row + job->actions[h * N + first + i] * N + i];
            row += job->sizes[h] * N;
        }
    }
}

/* d log p[a] / d logit[k] = [k = a] - p[k];  d h / d logit[k] = -p[k] * (log p[k] + h) */
static void NAME(gradient)(const gradient_job *job)
{
    const int64_t N = job->n_steps;
    int64_t row = 0;
    for (int64_t h = 0; h < job->n_heads; h++) {
        const float *restrict entropy = job->entropy + h * N;
        const float *restrict d_taken = job->d_taken + h * N;
        const float *restrict d_entropy = job->d_entropy + h * N;
        for (int64_t k = 0; k < job->sizes[h]; k++) {
            const float *restrict log_p = job->log_p + row + k * N, *restrict p = job->p + row + k * N;
            float *restrict d_logits = job->d_logits + row + k * N;
            for (int64_t i = 0; i < N; i++)
                d_logits[i] = -p[i] * (d_taken[i] + d_entropy[i] * (log_p[i] + entropy[i]));
        }
        for (int64_t i = 0; i < N; i++)
            job->d_logits[row + job->actions[h * N + i] * N + i] += d_taken[i];
        row += job->sizes[h] * N;
    }
}

#undef NAME
