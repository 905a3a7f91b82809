/* Layers of feature maps [C, H, W, B]; see _vector_hosts_products.h. */

/* The sum of n numbers, a whole number of vectors. */
static REAL NAME(sum)(const REAL *x, int64_t n)
{
    NAME(vector) sums = {0};
    for (int64_t j = 0; j < n; j += LANES) sums += LOAD(x + j);
    return NAME(total)(sums);
}

/* The 3x3 convolution of an op. */
static conv_job NAME(conv_job_of)(const NAME(host) *host, const op *it)
{
    const int64_t *sizes = host->plan->sizes, plane = it->height * it->width;
    return (conv_job){
        .n_groups = it->n_groups, .n_in = sizes[it->from] / plane / it->n_groups,
        .n_out = sizes[it->to] / plane / it->n_groups, .height = it->height, .width = it->width,
        .batch = host->padded_batch,
        .weight_row = PADDED(host->plan->parameters[it->weight].n_columns),
    };
}

/* Whether a convolution is 1x1, which is a matrix product. */
static int NAME(is_pointwise)(const NAME(host) *host, const op *it)
{
    const int64_t n_in = host->plan->sizes[it->from] / (it->height * it->width) / it->n_groups;
    return host->plan->parameters[it->weight].n_columns == n_in;
}

static int64_t NAME(conv_scratch)(const NAME(host) *host, const op *it)
{
    const conv_job job = NAME(conv_job_of)(host, it);
    conv_job turned = job;
    turned.n_in = job.n_out, turned.n_out = job.n_in;
    const int64_t sizes[] = {NAME(convolve_scratch)(&job), NAME(convolve_scratch)(&turned),
                             NAME(correlate_scratch)(&job)};
    int64_t most = 0;
    for (int i = 0; i < 3; i++) most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static void NAME(conv)(const NAME(host) *host, const op *it)
{
    conv_job job = NAME(conv_job_of)(host, it);
    const int64_t B = host->padded_batch, plane = it->height * it->width * B;
    const REAL *weight = host->weights + host->own[it->weight];
    const REAL *bias = it->bias < 0 ? NULL : host->weights + host->own[it->bias];
    const REAL *x = host->values + host->at[it->from] * B;
    REAL *to = host->values + host->at[it->to] * B;
    if (NAME(is_pointwise)(host, it)) {
        NAME(multiply)
        (job.n_out, plane, job.n_in, weight, job.weight_row, 1, x, plane, bias, to, plane, 0);
        return;
    }
    job.input = x, job.weight = weight, job.bias = bias, job.output = to;
    for (int64_t group = 0; group < it->n_groups; group++)
        NAME(convolve)(&job, group, host->packed);
}

static void NAME(conv_back)(const NAME(host) *host, const op *it)
{
    conv_job job = NAME(conv_job_of)(host, it);
    const int64_t B = host->padded_batch, plane = it->height * it->width * B;
    const int64_t n_in = job.n_in, n_out = job.n_out, is_pointwise = NAME(is_pointwise)(host, it);
    const REAL *weight = host->weights + host->own[it->weight];
    const REAL *slope = host->slopes + host->at[it->to] * B;
    const REAL *x = host->values + host->at[it->from] * B;
    REAL *d_weight = host->gradient + host->own[it->weight];
    REAL *d_x = host->slopes + host->at[it->from] * B;
    for (int64_t k = 0; it->bias >= 0 && k < n_out * it->n_groups; k++)
        host->gradient[host->own[it->bias] + k] = NAME(sum)(slope + k * plane, plane);
    for (int64_t k = 0; is_pointwise && k < n_out; k++)
        for (int64_t c = 0; c < n_in; c++) {
            NAME(vector) sums = {0};
            for (int64_t j = 0; j < plane; j += LANES)
                sums += LOAD(slope + k * plane + j) * LOAD(x + c * plane + j);
            d_weight[k * job.weight_row + c] = NAME(total)(sums);
        }
    job.input = x, job.d_output = slope, job.output = d_weight;
    for (int64_t group = 0; !is_pointwise && group < it->n_groups; group++)
        NAME(correlate_all)(&job, group, host->packed);
    if (it->is_detached) return;
    if (is_pointwise) {
        NAME(multiply)
        (n_in, plane, n_out, weight, 1, job.weight_row, slope, plane, NULL, d_x, plane, 1);
        return;
    }
    job.n_in = n_out, job.n_out = n_in, job.is_transposed = job.adds = 1;
    job.input = slope, job.weight = weight, job.output = d_x;
    for (int64_t group = 0; group < it->n_groups; group++)
        NAME(convolve)(&job, group, host->packed);
}

/* Write the mean and the deviation of n positions of one channel over the batch; with statistics,
 * also update them. */
static void NAME(observe)(const NAME(host) *host, const op *it, int64_t channel, int64_t n,
                          const REAL *x, REAL *kept)
{
    const int64_t B = host->padded_batch, batch = host->batch;
    const REAL count = n * batch;
    REAL mean = 0, square = 0;
    if (B == batch) {
        mean = NAME(sum)(x, n * B) / count;
        NAME(vector) sums = {0};
        for (int64_t j = 0; j < n * B; j += LANES) sums += (LOAD(x + j) - mean) * (LOAD(x + j) - mean);
        square = NAME(total)(sums);
    } else {  /* the padding does not count */
        for (int64_t p = 0; p < n; p++)
            for (int64_t b = 0; b < batch; b++) mean += x[p * B + b];
        mean /= count;
        for (int64_t p = 0; p < n; p++)
            for (int64_t b = 0; b < batch; b++)
                square += (x[p * B + b] - mean) * (x[p * B + b] - mean);
    }
    kept[0] = mean, kept[1] = 1 / SQRT(square / count + (REAL)it->number);
    if (!host->is_observing) return;
    REAL *means = (REAL *)host->work->memory + it->mean;
    REAL *variances = (REAL *)host->work->memory + it->variance;
    const REAL momentum = it->momentum, variance = square / (count > 1 ? count - 1 : 1);
    means[channel] += momentum * (mean - means[channel]);
    variances[channel] += momentum * (variance - variances[channel]);
}

/* Batch norm of each channel; `other` keeps the mean and the reciprocal deviation. */
static void NAME(batch_norm)(const NAME(host) *host, const op *it)
{
    const int64_t B = host->padded_batch, C = host->plan->parameters[it->weight].n_columns;
    const int64_t n = host->plan->sizes[it->to] / C;
    const REAL *weight = host->weights + host->own[it->weight];
    const REAL *bias = host->weights + host->own[it->bias];
    REAL *kept = host->values + host->at[it->other] * B;
    for (int64_t c = 0; c < C; c++) {
        const REAL *x = host->values + host->at[it->from] * B + c * n * B;
        REAL *to = host->values + host->at[it->to] * B + c * n * B, *own = kept + c * B;
        if (host->is_training) {
            NAME(observe)(host, it, c, n, x, own);
        } else {
            const REAL *memory = host->work->memory;
            own[0] = memory[it->mean + c];
            own[1] = 1 / SQRT(memory[it->variance + c] + (REAL)it->number);
        }
        const REAL scale = own[1] * weight[c], shift = bias[c] - own[0] * scale;
        for (int64_t j = 0; j < n * B; j += LANES) STORE(to + j, LOAD(x + j) * scale + shift);
    }
}

static void NAME(batch_norm_back)(const NAME(host) *host, const op *it)
{
    const int64_t B = host->padded_batch, C = host->plan->parameters[it->weight].n_columns;
    const int64_t n = host->plan->sizes[it->to] / C;
    const REAL *weight = host->weights + host->own[it->weight], count = n * host->batch;
    const REAL *kept = host->values + host->at[it->other] * B;
    for (int64_t c = 0; c < C; c++) {
        const REAL *x = host->values + host->at[it->from] * B + c * n * B;
        const REAL *slope = host->slopes + host->at[it->to] * B + c * n * B;
        REAL *d_x = host->slopes + host->at[it->from] * B + c * n * B;
        const REAL mean = kept[c * B], inverse = kept[c * B + 1];
        NAME(vector) sums = {0}, products = {0};
        for (int64_t j = 0; j < n * B; j += LANES) {
            sums += LOAD(slope + j);
            products += LOAD(slope + j) * (LOAD(x + j) - mean);
        }
        const REAL d_bias = NAME(total)(sums), d_weight = NAME(total)(products) * inverse;
        host->gradient[host->own[it->bias] + c] = d_bias;
        host->gradient[host->own[it->weight] + c] = d_weight;
        if (it->is_detached) continue;
        const REAL scale = weight[c] * inverse, along = d_weight * inverse / count;
        for (int64_t p = 0; p < n * B; p += B)
            for (int64_t b = p; b < p + host->batch; b++)
                d_x[b] += scale * (slope[b] - d_bias / count - (x[b] - mean) * along);
    }
}

/* The mean of each channel's positions. */
static void NAME(pool)(const NAME(host) *host, const op *it)
{
    const int64_t B = host->padded_batch, C = host->plan->sizes[it->to];
    const int64_t n = host->plan->sizes[it->from] / C;
    for (int64_t c = 0; c < C; c++)
        for (int64_t b = 0; b < B; b += LANES) {
            const REAL *x = host->values + (host->at[it->from] + c * n) * B + b;
            NAME(vector) sums = {0};
            for (int64_t p = 0; p < n; p++) sums += LOAD(x + p * B);
            STORE(host->values + (host->at[it->to] + c) * B + b, sums / (REAL)n);
        }
}

static void NAME(pool_back)(const NAME(host) *host, const op *it)
{
    const int64_t B = host->padded_batch, C = host->plan->sizes[it->to];
    const int64_t n = host->plan->sizes[it->from] / C;
    for (int64_t p = 0; p < C * n && !it->is_detached; p++) {
        const REAL *slope = host->slopes + (host->at[it->to] + p / n) * B;
        REAL *d_x = host->slopes + (host->at[it->from] + p) * B;
        for (int64_t b = 0; b < B; b += LANES)
            STORE(d_x + b, LOAD(d_x + b) + LOAD(slope + b) / (REAL)n);
    }
}

/* `from` times the factors in `other`: each serves `repeat` numbers in a row, and after the last
 * factor comes the first again. */
static void NAME(scale)(const NAME(host) *host, const op *it)
{
    const int64_t B = host->padded_batch, n_factors = host->plan->sizes[it->other];
    for (int64_t d = 0; d < host->plan->sizes[it->to]; d++) {
        const int64_t which = d / it->repeat % n_factors;
        const REAL *x = host->values + (host->at[it->from] + d) * B;
        const REAL *factors = host->values + (host->at[it->other] + which) * B;
        REAL *to = host->values + (host->at[it->to] + d) * B;
        for (int64_t b = 0; b < B; b += LANES) STORE(to + b, LOAD(x + b) * LOAD(factors + b));
    }
}

static void NAME(scale_back)(const NAME(host) *host, const op *it)
{
    const int64_t B = host->padded_batch, n_factors = host->plan->sizes[it->other];
    for (int64_t d = 0; d < host->plan->sizes[it->to]; d++) {
        const int64_t which = d / it->repeat % n_factors;
        const REAL *x = host->values + (host->at[it->from] + d) * B;
        const REAL *factors = host->values + (host->at[it->other] + which) * B;
        const REAL *slope = host->slopes + (host->at[it->to] + d) * B;
        REAL *d_x = host->slopes + (host->at[it->from] + d) * B;
        REAL *d_factors = host->slopes + (host->at[it->other] + which) * B;
        for (int64_t b = 0; b < B; b += LANES) {
            STORE(d_factors + b, LOAD(d_factors + b) + LOAD(slope + b) * LOAD(x + b));
            if (!it->is_detached)
                STORE(d_x + b, LOAD(d_x + b) + LOAD(slope + b) * LOAD(factors + b));
        }
    }
}
