/* Training and evaluating one host for one instruction set and one precision, named by NAME(x),
 * whose vectors hold LANES numbers of type REAL. A value (a layer's output) is [D, B] with samples
 * innermost; B is a whole number of vectors, padded with zeros. A feature map is [C, H, W, B].
 */

#define PADDED(n) (((n) + LANES - 1) / LANES * LANES)

/* A host being computed: its tensors in scratch memory. */
typedef struct {
    const program *plan;
    int64_t batch, padded_batch;
    int64_t at[MAX_VALUES];         /* where each value begins, in units of padded_batch */
    int64_t own[MAX_PARAMETERS];    /* where each parameter begins */
    int64_t n_numbers, n_values;    /* of all parameters, of all values */
    REAL *weights, *gradient;       /* [n_numbers], followed by the moments in weights */
    REAL *values, *slopes;          /* the values and the gradient of the loss by them */
    REAL *rows, *turned;            /* the inputs, and one value, as [B, D] */
    int64_t classes[MAX_SAMPLES];   /* the targets of a classification, */
    const REAL *wanted[MAX_SAMPLES];  /* of a regression: one number for each output */
    REAL *packed;                   /* what a convolution needs */
    const job *work;
    int is_training, is_observing;  /* whether batch norms use, and update, a batch's statistics */
} NAME(host);

/* sums[m][n] = a[m, :] @ b[:, n] for M rows and V vectors, replacing c or added to it. A plain sum
 * rounds each product before adding it, so that a term and its negative cancel. */
ALWAYS_INLINE void NAME(tile)(const int M, const int V, const int is_plain, int64_t K,
                              const REAL *a, int64_t a_row, int64_t a_column, const REAL *b,
                              int64_t b_row, const REAL *start, REAL *c, int64_t c_row, int adds)
{
    NAME(vector) sums[MAX_ROWS][2];
#pragma GCC unroll 6
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) sums[m][v] = (NAME(vector)){0} + (start ? start[m] : 0);
    for (int64_t k = 0; k < K; k++, a += a_column, b += b_row) {
        NAME(vector) right[2];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) right[v] = LOAD(b + v * LANES);
#pragma GCC unroll 6
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) {
                NAME(vector) product = right[v] * a[m * a_row];
                if (is_plain) ROUNDED(product);
                sums[m][v] += product;
            }
    }
#pragma GCC unroll 6
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
            REAL *to = c + m * c_row + v * LANES;
            STORE(to, adds ? LOAD(to) + sums[m][v] : sums[m][v]);
        }
}

#define TILE(rows, V, is_plain)                                                                   \
    NAME(tile)                                                                                    \
    (rows, V, is_plain, K, left, a_row, a_column, b + n, b_row, first, to + n, c_row, adds)
#define ROWS(rows, is_plain)                                                                      \
    case rows:                                                                                    \
        for (; n + 2 * LANES <= N; n += 2 * LANES) TILE(rows, 2, is_plain);                       \
        if (n < N) TILE(rows, 1, is_plain);                                                       \
        break;

/* c [M, N] = a [M, K] @ b [K, N] + start [M], or added to c if `adds`; N is a whole number of
 * vectors. The strides of a are arguments, so it may be transposed. */
static void NAME(multiply)(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t a_row,
                           int64_t a_column, const REAL *b, int64_t b_row, const REAL *start,
                           REAL *c, int64_t c_row, int adds)
{
    const int64_t n_blocks = (M + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t m = block * M / n_blocks, n_rows = (block + 1) * M / n_blocks - m;
        const REAL *left = a + m * a_row, *first = start ? start + m : NULL;
        REAL *to = c + m * c_row;
        int64_t n = 0;
        switch (n_rows) {
            ROWS(1, 0) ROWS(2, 0) ROWS(3, 0) ROWS(4, 0) ROWS(5, 0) ROWS(6, 0)
        }
    }
}

/* The same with plain sums, always replacing c. */
static void NAME(multiply_plainly)(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t a_row,
                                   const REAL *b, int64_t b_row, const REAL *start, REAL *c,
                                   int64_t c_row)
{
    const int64_t a_column = 1;
    const int adds = 0;
    for (int64_t m = 0; m < M; m += 2) {
        const REAL *left = a + m * a_row, *first = start ? start + m : NULL;
        REAL *to = c + m * c_row;
        int64_t n = 0;
        switch (M - m) {
            ROWS(1, 1)
        default:
            for (; n + 2 * LANES <= N; n += 2 * LANES) TILE(2, 2, 1);
            if (n < N) TILE(2, 1, 1);
        }
    }
}
#undef ROWS
#undef TILE

static REAL NAME(total)(NAME(vector) sums)
{
    REAL total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

/* Transpose [n_rows, n_columns] to [n_columns, n_rows] with row stride `to_row`. */
static void NAME(turn)(const REAL *restrict from, int64_t from_row, int64_t n_rows,
                       int64_t n_columns, REAL *restrict to, int64_t to_row)
{
    int64_t r = 0;
    for (; r + 4 <= n_rows; r += 4) {
        const REAL *a = from + r * from_row, *b = a + from_row, *c = b + from_row,
                   *d = c + from_row;
        for (int64_t k = 0; k < n_columns; k++) {
            REAL *out = to + k * to_row + r;
            out[0] = a[k], out[1] = b[k], out[2] = c[k], out[3] = d[k];
        }
    }
    for (; r < n_rows; r++)
        for (int64_t k = 0; k < n_columns; k++) to[k * to_row + r] = from[r * from_row + k];
}

