/* The forward and backward pass of each op; see _vector_hosts_products.h. */

/* Layer norm of each sample: to = (x - mean) / root * weight + bias, with a weight for every number
 * or for every channel; `back` gives the gradients. */
static void NAME(norm)(const NAME(host) *host, const op *it)
{
    const int64_t D = host->plan->sizes[it->to], B = host->padded_batch;
    const int64_t n_each = D / host->plan->parameters[it->weight].n_columns;
    const REAL *weight = host->weights + host->own[it->weight];
    const REAL *bias = host->weights + host->own[it->bias];
    for (int64_t b = 0; b < B; b += LANES) {
        const REAL *x = host->values + host->at[it->from] * B + b;
        REAL *to = host->values + host->at[it->to] * B + b;
        REAL *kept = host->values + host->at[it->other] * B + b;
        NAME(vector) mean = {0}, square = {0}, root;
        for (int64_t d = 0; d < D; d++) mean += LOAD(x + d * B);
        mean /= (REAL)D;
        for (int64_t d = 0; d < D; d++) square += (LOAD(x + d * B) - mean) * (LOAD(x + d * B) - mean);
        for (int lane = 0; lane < LANES; lane++)
            root[lane] = SQRT(square[lane] / D + (REAL)it->number);
        for (int64_t d = 0; d < D; d++) {
            const NAME(vector) plain = (LOAD(x + d * B) - mean) / root;
            STORE(kept + d * B, plain);
            STORE(to + d * B, plain * weight[d / n_each] + bias[d / n_each]);
        }
        STORE(kept + D * B, root);
    }
}

static void NAME(norm_back)(const NAME(host) *host, const op *it)
{
    const int64_t D = host->plan->sizes[it->to], B = host->padded_batch;
    const int64_t n_weights = host->plan->parameters[it->weight].n_columns, n_each = D / n_weights;
    const REAL *slope = host->slopes + host->at[it->to] * B;
    const REAL *kept = host->values + host->at[it->other] * B;
    const REAL *weight = host->weights + host->own[it->weight];
    REAL *d_x = host->slopes + host->at[it->from] * B;
    for (int64_t d = 0; d < n_weights; d++) {
        NAME(vector) of_weight = {0}, of_bias = {0};
        for (int64_t j = d * n_each * B; j < (d + 1) * n_each * B; j += LANES) {
            of_weight += LOAD(slope + j) * LOAD(kept + j);
            of_bias += LOAD(slope + j);
        }
        host->gradient[host->own[it->weight] + d] = NAME(total)(of_weight);
        host->gradient[host->own[it->bias] + d] = NAME(total)(of_bias);
    }
    for (int64_t b = 0; b < B && !it->is_detached; b += LANES) {
        NAME(vector) mean = {0}, along = {0};
        const NAME(vector) root = LOAD(kept + D * B + b);
        for (int64_t d = 0; d < D; d++) {
            const NAME(vector) g = LOAD(slope + d * B + b) * weight[d / n_each];
            mean += g, along += g * LOAD(kept + d * B + b);
        }
        mean /= (REAL)D, along /= (REAL)D;
        for (int64_t d = 0; d < D; d++) {
            const NAME(vector) g = LOAD(slope + d * B + b) * weight[d / n_each];
            const NAME(vector) own = (g - mean - LOAD(kept + d * B + b) * along) / root;
            STORE(d_x + d * B + b, LOAD(d_x + d * B + b) + own);
        }
    }
}

static void NAME(linear)(const NAME(host) *host, const op *it)
{
    const parameter *weight = &host->plan->parameters[it->weight];
    const int64_t B = host->padded_batch, width = PADDED(weight->n_columns);
    const REAL *own = host->weights + host->own[it->weight];
    const REAL *x = host->values + host->at[it->from] * B;
    const REAL *bias = it->bias < 0 ? NULL : host->weights + host->own[it->bias];
    REAL *to = host->values + host->at[it->to] * B;
    /* Plain sums, so that the mirrored units of a new seed cancel exactly. */
    if (weight->column)
        NAME(multiply_plainly)
        (weight->n_rows, B, weight->n_columns, own, width, x, B, bias, to, B);
    else
        NAME(multiply)
        (weight->n_rows, B, weight->n_columns, own, width, 1, x, B, bias, to, B, 0);
}

static void NAME(linear_back)(const NAME(host) *host, const op *it)
{
    const parameter *weight = &host->plan->parameters[it->weight];
    const int64_t B = host->padded_batch, n_in = weight->n_columns, width = PADDED(n_in);
    const REAL *slope = host->slopes + host->at[it->to] * B, *rows = host->rows;
    if (it->from) {  /* the inputs are already available as rows */
        if (width != n_in) memset(host->turned, 0, B * width * sizeof(REAL));
        NAME(turn)(host->values + host->at[it->from] * B, B, n_in, B, host->turned, width);
        rows = host->turned;
    }
    NAME(multiply)
    (weight->n_rows, width, host->batch, slope, B, 1, rows, width, NULL,
     host->gradient + host->own[it->weight], width, 0);
    for (int64_t o = 0; it->bias >= 0 && o < weight->n_rows; o++) {
        NAME(vector) sums = {0};
        for (int64_t b = 0; b < B; b += LANES) sums += LOAD(slope + o * B + b);
        host->gradient[host->own[it->bias] + o] = NAME(total)(sums);
    }
    if (!it->is_detached)
        NAME(multiply)
        (n_in, B, weight->n_rows, host->weights + host->own[it->weight], 1, width, slope, B, NULL,
         host->slopes + host->at[it->from] * B, B, 1);
}

/* The weight of `other` in a sum: 1 but in a blend. */
static REAL NAME(alpha_of)(const NAME(host) *host, const op *it)
{
    if (it->kind != BLEND) return 1;
    return it->slot < 0 ? it->number : host->work->alphas[it->slot];
}

static void NAME(forward)(const NAME(host) *host)
{
    const program *plan = host->plan;
    const int64_t B = host->padded_batch;
    for (int64_t i = 0; i < plan->n_ops; i++) {
        const op *it = &plan->ops[i];
        const int64_t n = plan->sizes[it->to] * B;
        REAL *restrict to = host->values + host->at[it->to] * B;
        const REAL *x = host->values + host->at[it->from] * B;
        REAL *other = host->values + host->at[it->other] * B;
        const REAL alpha = NAME(alpha_of)(host, it);
        switch (it->kind) {
        case LINEAR: NAME(linear)(host, it); break;
        case NORM: NAME(norm)(host, it); break;
        case RELU:
            for (int64_t j = 0; j < n; j++) to[j] = x[j] < 0 ? 0 : x[j];
            break;
        case GELU:
            for (int64_t j = 0; j < n; j++) {
                other[j] = (REAL)0.5 * (1 + ERF(x[j] * (REAL)M_SQRT1_2));
                to[j] = x[j] * other[j];
            }
            break;
        case TANH:
            for (int64_t j = 0; j < n; j++) to[j] = TANH_OF(x[j]);
            break;
        case GATE:
            for (int64_t j = 0; j < n; j++) to[j] = 2 / (1 + EXP(-x[j]));
            break;
        case ZERO: memset(to, 0, n * sizeof(REAL)); break;
        case ADD:
            for (int64_t j = 0; j < n; j++) to[j] = x[j] + other[j];
            break;
        case PRODUCT:
            for (int64_t j = 0; j < n; j++) to[j] = x[j] * other[j];
            break;
        case SCALE: NAME(scale)(host, it); break;
        case CONV: NAME(conv)(host, it); break;
        case BATCH_NORM: NAME(batch_norm)(host, it); break;
        case POOL: NAME(pool)(host, it); break;
        case PASS: memcpy(to, x, n * sizeof(REAL)); break;
        case BLEND:
            for (int64_t j = 0; j < n; j++) to[j] = x[j] + other[j] * alpha;
            break;
        }
    }
}

static void NAME(backward)(const NAME(host) *host)
{
    const program *plan = host->plan;
    const int64_t B = host->padded_batch;
    for (int64_t i = plan->n_ops - 1; i >= 0; i--) {
        const op *it = &plan->ops[i];
        const int64_t n = plan->sizes[it->to] * B, is_attached = !it->is_detached;
        const REAL *restrict slope = host->slopes + host->at[it->to] * B;
        const REAL *y = host->values + host->at[it->to] * B;
        const REAL *x = host->values + host->at[it->from] * B;
        const REAL *other = host->values + host->at[it->other] * B;
        REAL *restrict d_x = host->slopes + host->at[it->from] * B;
        REAL *restrict d_other = host->slopes + host->at[it->other] * B;
        const REAL alpha = NAME(alpha_of)(host, it);
        switch (it->kind) {
        case LINEAR: NAME(linear_back)(host, it); break;
        case NORM: NAME(norm_back)(host, it); break;
        case RELU:
            for (int64_t j = 0; j < n && is_attached; j++) d_x[j] += y[j] <= 0 ? 0 : slope[j];
            break;
        case GELU:
            for (int64_t j = 0; j < n && is_attached; j++) {
                const REAL density = EXP(x[j] * x[j] * (REAL)-0.5) * (REAL)NORMAL_PEAK;
                d_x[j] += slope[j] * (other[j] + x[j] * density);
            }
            break;
        case TANH:
            for (int64_t j = 0; j < n && is_attached; j++) d_x[j] += slope[j] * (1 - y[j] * y[j]);
            break;
        case GATE:
            for (int64_t j = 0; j < n; j++) d_x[j] += slope[j] * y[j] * (1 - y[j] / 2);
            break;
        case ZERO: break;
        case ADD:
            for (int64_t j = 0; j < n; j++) d_other[j] += slope[j];
            for (int64_t j = 0; j < n && is_attached; j++) d_x[j] += slope[j];
            break;
        case PRODUCT:
            for (int64_t j = 0; j < n; j++) d_other[j] += slope[j] * x[j];
            for (int64_t j = 0; j < n && is_attached; j++) d_x[j] += slope[j] * other[j];
            break;
        case SCALE: NAME(scale_back)(host, it); break;
        case CONV: NAME(conv_back)(host, it); break;
        case BATCH_NORM: NAME(batch_norm_back)(host, it); break;
        case POOL: NAME(pool_back)(host, it); break;
        case PASS:
        case BLEND:
            for (int64_t j = 0; j < n; j++) d_x[j] += slope[j];
            for (int64_t j = 0; j < n; j++) d_other[j] += slope[j] * alpha;
            break;
        }
    }
}
