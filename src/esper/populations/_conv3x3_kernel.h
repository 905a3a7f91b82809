/* 3x3 convolutions of one group for one instruction set and one precision, named by
 * NAME(x), whose vectors hold LANES numbers of type REAL. In a function that is always inlined, arguments of type int are
 * constants: loops over them are unrolled, and what they index stays in registers.
 */

typedef REAL NAME(vector) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL))));
#define LOAD(from) (*(const NAME(vector) *)(from))
#define STORE(to, numbers) (*(NAME(vector) *)(to) = (numbers))

/* The neighbourhood of one position of the images. */
typedef struct {
    const REAL *rows[3]; /* packed, above, at and below the position; NULL beyond an edge */
    int64_t left, width;  /* the columns within reach */
    int64_t n_missing;    /* columns beyond the left edge */
    int64_t n_samples;
} NAME(window);

/* Copy row h of n samples to [W, C, V * LANES], so that what a position reads from a row is
 * contiguous. Only a single vector may have fewer samples than lanes; it is padded with zeros. */
ALWAYS_INLINE void NAME(pack_row)(const int V, const conv_job *job, const REAL *input, int64_t h,
                                  int64_t n, REAL *packed)
{
    const int64_t C = job->n_in, W = job->width, B = job->batch;
    for (int64_t c = 0; c < C; c++) {
        const REAL *from = input + (c * job->height + h) * W * B;
        REAL *to = packed + c * V * LANES;
        for (int64_t w = 0; w < W; w++, from += B, to += C * V * LANES) {
            if (V > 1 || n == LANES) {
                memcpy(to, from, V * LANES * sizeof(REAL));
            } else {
                memset(to, 0, V * LANES * sizeof(REAL));
                memcpy(to, from, n * sizeof(REAL));
            }
        }
    }
}

/* K outputs, `stride` apart, of V vectors of samples at one position; weights [3, 3, C, K]. */
ALWAYS_INLINE void NAME(position)(const int K, const int V, const NAME(window) *around, int64_t C,
                                  const REAL *weights, const REAL *bias, REAL *output,
                                  int64_t stride, int adds)
{
    NAME(vector) sums[MAX_OUTPUTS][MAX_VECTORS];
#pragma GCC unroll 6
    for (int k = 0; k < K; k++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[k][v] = (NAME(vector)){0} + (bias ? bias[k] : 0);
    for (int i = 0; i < 3; i++) {
        if (!around->rows[i]) continue;
        const REAL *x = around->rows[i] + around->left * C * V * LANES;
        const REAL *end = x + around->width * C * V * LANES;
        const REAL *weight = weights + (3 * i + around->n_missing) * C * K;
        for (; x < end; x += V * LANES, weight += K) {
            NAME(vector) samples[MAX_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) samples[v] = LOAD(x + v * LANES);
#pragma GCC unroll 6
            for (int k = 0; k < K; k++)
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) sums[k][v] += samples[v] * weight[k];
        }
    }
    const int64_t n = around->n_samples;
#pragma GCC unroll 6
    for (int k = 0; k < K; k++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            REAL *to = output + k * stride + v * LANES;
            if (V > 1 || n == LANES) {
                STORE(to, adds ? LOAD(to) + sums[k][v] : sums[k][v]);
            } else {
                REAL part[LANES];
                STORE(part, sums[k][v]);
                memcpy(to, part, n * sizeof(REAL));
            }
        }
}

/* Every output of n samples at every position. Three packed rows are kept; a new row replaces the
 * one that is no longer needed. */
ALWAYS_INLINE void NAME(convolve_samples)(const int V, const conv_job *job, const REAL *input,
                                          const REAL *bias, REAL *output, REAL *scratch,
                                          int64_t n)
{
    const int64_t C = job->n_in, K = job->n_out, H = job->height, W = job->width, B = job->batch;
    const int64_t n_blocks = count_blocks(K, MAX_OUTPUTS), row_size = W * C * V * LANES;
    const REAL *weights = scratch;
    REAL *packed = scratch + 9 * C * K;
    NAME(window) around = {.n_samples = n};
    NAME(pack_row)(V, job, input, 0, n, packed);
    for (int64_t h = 0; h < H; h++) {
        if (h + 1 < H)
            NAME(pack_row)(V, job, input, h + 1, n, packed + (h + 1) % 3 * row_size);
        around.rows[0] = h > 0 ? packed + (h - 1) % 3 * row_size : NULL;
        around.rows[1] = packed + h % 3 * row_size;
        around.rows[2] = h + 1 < H ? packed + (h + 1) % 3 * row_size : NULL;
        for (int64_t w = 0; w < W; w++) {
            around.left = w > 0 ? w - 1 : 0;
            around.width = (w + 1 < W ? w + 1 : w) - around.left + 1;
            around.n_missing = w == 0;
            for (int64_t block = 0; block < n_blocks; block++) {
                const int64_t k = first_of(block, K, n_blocks);
                const REAL *start = bias ? bias + k : NULL, *of_block = weights + 9 * C * k;
                REAL *to = output + ((k * H + h) * W + w) * B;
#define OUTPUTS(n)                                                                                \
    case n:                                                                                       \
        if (V * n <= MAX_SUMS)                                                                    \
            NAME(position)(n, V, &around, C, of_block, start, to, H * W * B, job->adds);          \
        break;
                switch (first_of(block + 1, K, n_blocks) - k) {
                    OUTPUTS(1) OUTPUTS(2) OUTPUTS(3) OUTPUTS(4) OUTPUTS(5) OUTPUTS(6)
                }
#undef OUTPUTS
            }
        }
    }
}

/* Copy the weights to [blocks of K, 3, 3, C, K of the block]. For the input gradient, inputs and
 * outputs are swapped and the taps are mirrored. */
static void NAME(pack_weights)(const conv_job *job, const REAL *weight, REAL *packed)
{
    const int64_t C = job->n_in, K = job->n_out, n_blocks = count_blocks(K, MAX_OUTPUTS);
    for (int64_t block = 0; block < n_blocks; block++)
        for (int64_t tap = 0; tap < 9; tap++)
            for (int64_t c = 0; c < C; c++)
                for (int64_t k = first_of(block, K, n_blocks);
                     k < first_of(block + 1, K, n_blocks); k++)
                    *packed++ = job->is_transposed ? weight[c * job->weight_row + k * 9 + 8 - tap]
                                                   : weight[k * job->weight_row + c * 9 + tap];
}

static int64_t NAME(convolve_scratch)(const conv_job *job)
{
    return 9 * job->n_in * job->n_out + 3 * job->width * job->n_in * MAX_VECTORS * LANES;
}

static void NAME(convolve)(const conv_job *job, int64_t group, REAL *scratch)
{
    const int64_t C = job->n_in, K = job->n_out, B = job->batch;
    const int64_t plane = job->height * job->width * B;
    const REAL *input = (const REAL *)job->input + group * C * plane;
    const REAL *bias = job->bias ? (const REAL *)job->bias + group * K : NULL;
    REAL *output = (REAL *)job->output + group * K * plane;
    NAME(pack_weights)
    (job, (const REAL *)job->weight + group * (job->is_transposed ? C : K) * job->weight_row, scratch);
    int64_t b = 0;
#define SAMPLES(V, n) NAME(convolve_samples)(V, job, input + b, bias, output + b, scratch, n)
    if (4 * K <= MAX_SUMS)
        for (; b + 4 * LANES <= B; b += 4 * LANES) SAMPLES(4, 4 * LANES);
    for (; b + 2 * LANES <= B; b += 2 * LANES) SAMPLES(2, 2 * LANES);
    for (; b + LANES <= B; b += LANES) SAMPLES(1, LANES);
    if (b < B) SAMPLES(1, B - b);
#undef SAMPLES
}

/* The images as the weight gradient reads them: one channel of one row is contiguous. */
typedef struct {
    const REAL *input, *d_output;
    int64_t row, plane; /* from one row, or one channel, to the next */
} NAME(images);

/* The weight gradient between K outputs and C inputs. A few rows at a time stay in cache for all
 * nine taps; the sums of each tap are kept in memory. */
ALWAYS_INLINE void NAME(correlate)(const int K, const int C, const conv_job *job,
                                   const NAME(images) *images, REAL *d_weight)
{
    const int64_t H = job->height, W = job->width, B = job->batch;
    const int64_t row = images->row, plane = images->plane;
    const int64_t band = W * B < BAND ? BAND / (W * B) : 1;
    NAME(vector) kept[9][MAX_PAIR_OUTPUTS][MAX_PAIR_INPUTS];
    memset(kept, 0, sizeof kept);
    for (int64_t first = 0; first < H; first += band)
        for (int tap = 0; tap < 9; tap++) {
            const int64_t i = tap / 3 - 1, j = tap % 3 - 1;
            const int64_t length = (j == 0 ? W : W - 1) * B;
            NAME(vector) sums[MAX_PAIR_OUTPUTS][MAX_PAIR_INPUTS];
#pragma GCC unroll 4
            for (int k = 0; k < K; k++)
#pragma GCC unroll 3
                for (int c = 0; c < C; c++) sums[k][c] = kept[tap][k][c];
            for (int64_t h = first; h < first + band && h < H; h++) {
                if (h + i < 0 || h + i >= H) continue;
                const REAL *g = images->d_output + h * row + (j < 0 ? B : 0);
                const REAL *x = images->input + (h + i) * row + (j > 0 ? B : 0);
                for (int64_t l = 0; l < length; l += LANES) {
                    NAME(vector) inputs[MAX_PAIR_INPUTS];
#pragma GCC unroll 3
                    for (int c = 0; c < C; c++) inputs[c] = LOAD(x + c * plane + l);
#pragma GCC unroll 4
                    for (int k = 0; k < K; k++)
#pragma GCC unroll 3
                        for (int c = 0; c < C; c++)
                            sums[k][c] += LOAD(g + k * plane + l) * inputs[c];
                }
            }
#pragma GCC unroll 4
            for (int k = 0; k < K; k++)
#pragma GCC unroll 3
                for (int c = 0; c < C; c++) kept[tap][k][c] = sums[k][c];
        }
    for (int k = 0; k < K; k++)
        for (int c = 0; c < C; c++)
            for (int tap = 0; tap < 9; tap++) {
                REAL total = 0;
                for (int lane = 0; lane < LANES; lane++) total += kept[tap][k][c][lane];
                d_weight[k * job->weight_row + c * 9 + tap] = total;
            }
}

/* Copy rows of W * B numbers to rows of `size`; the rest is zero. */
static void NAME(pad_rows)(const REAL *from, int64_t n_rows, int64_t length, int64_t size,
                           REAL *to)
{
    for (int64_t r = 0; r < n_rows; r++, from += length, to += size) {
        memcpy(to, from, length * sizeof(REAL));
        memset(to + length, 0, (size - length) * sizeof(REAL));
    }
}

/* The size of a padded row, or 0 if rows are a whole number of vectors. The last vector of a row may
 * extend past its end, where one of its two factors is padding. */
static int64_t NAME(padded_row)(const conv_job *job)
{
    return job->batch % LANES ? job->width * job->batch + LANES : 0;
}

static int64_t NAME(correlate_scratch)(const conv_job *job)
{
    return (job->n_in + job->n_out) * job->height * NAME(padded_row)(job);
}

static void NAME(correlate_all)(const conv_job *job, int64_t group, REAL *scratch)
{
    const int64_t C = job->n_in, K = job->n_out, H = job->height, length = job->width * job->batch;
    const int64_t padded = NAME(padded_row)(job);
    const int64_t k_blocks = count_blocks(K, MAX_PAIR_OUTPUTS);
    const int64_t c_blocks = count_blocks(C, MAX_PAIR_INPUTS);
    NAME(images) all = {(const REAL *)job->input + group * C * H * length,
                        (const REAL *)job->d_output + group * K * H * length, length, H * length};
    if (padded) {
        NAME(pad_rows)(all.input, C * H, length, padded, scratch);
        NAME(pad_rows)(all.d_output, K * H, length, padded, scratch + C * H * padded);
        all = (NAME(images)){scratch, scratch + C * H * padded, padded, H * padded};
    }
    for (int64_t k_block = 0; k_block < k_blocks; k_block++)
        for (int64_t c_block = 0; c_block < c_blocks; c_block++) {
            const int64_t k = first_of(k_block, K, k_blocks), c = first_of(c_block, C, c_blocks);
            const int64_t n_k = first_of(k_block + 1, K, k_blocks) - k;
            const int64_t n_c = first_of(c_block + 1, C, c_blocks) - c;
            const NAME(images) some = {all.input + c * all.plane, all.d_output + k * all.plane,
                                       all.row, all.plane};
            REAL *d_weight = (REAL *)job->output + (group * K + k) * job->weight_row + c * 9;
#define PAIRS(n_k, n_c)                                                                           \
    case 4 * n_k + n_c:                                                                           \
        NAME(correlate)(n_k, n_c, job, &some, d_weight);                                          \
        break;
            switch (4 * n_k + n_c) {
                PAIRS(1, 1) PAIRS(1, 2) PAIRS(1, 3) PAIRS(2, 1) PAIRS(2, 2) PAIRS(2, 3)
                PAIRS(3, 1) PAIRS(3, 2) PAIRS(3, 3) PAIRS(4, 1) PAIRS(4, 2) PAIRS(4, 3)
            }
#undef PAIRS
        }
}
