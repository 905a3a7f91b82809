/* Epochs and evaluations of one host; see _vector_hosts_products.h. */

/* Lay a host out in scratch memory (if not NULL) and return the size that it needs. */
static int64_t NAME(lay_out)(NAME(host) *host, const job *work, int64_t batch, int is_training,
                             void *memory)
{
    const program *plan = work->plan;
    int64_t widest = 0;
    host->work = work, host->plan = plan, host->batch = batch, host->padded_batch = PADDED(batch);
    host->n_numbers = host->n_values = 0;
    for (int64_t v = 0; v < plan->n_values; v++) {
        host->at[v] = host->n_values;
        host->n_values += plan->sizes[v];
        if (plan->sizes[v] > widest) widest = plan->sizes[v];
    }
    for (int64_t p = 0; p < plan->n_parameters; p++) {
        host->own[p] = host->n_numbers;
        host->n_numbers += plan->parameters[p].n_rows * PADDED(plan->parameters[p].n_columns);
    }
    const int64_t B = host->padded_batch, planes = is_training ? 3 : 1;
    int64_t most_packed = 0;
    for (int64_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].kind != CONV) continue;
        const int64_t size = NAME(conv_scratch)(host, &plan->ops[i]);
        if (size > most_packed) most_packed = size;
    }
    host->weights = memory;
    host->gradient = host->weights + planes * host->n_numbers;
    host->values = host->gradient + (is_training ? host->n_numbers : 0);
    host->slopes = host->values + host->n_values * B;
    host->rows = host->slopes + (is_training ? host->n_values * B : 0);
    host->turned = host->rows + B * PADDED(plan->sizes[0]);
    host->packed = host->turned + B * PADDED(widest);
    const int64_t total = host->packed + PADDED(most_packed) - host->weights;
    return total * sizeof(REAL);
}

/* Copy parameters and moments between a host's memory and scratch memory. */
static void NAME(carry)(const NAME(host) *host, int64_t n_planes, int is_back)
{
    if (!is_back) memset(host->weights, 0, n_planes * host->n_numbers * sizeof(REAL));
    for (int64_t p = 0; p < host->plan->n_parameters; p++) {
        const parameter *it = &host->plan->parameters[p];
        for (int64_t plane = 0; plane < n_planes; plane++) {
            REAL *theirs = (REAL *)host->work->memory + plane * host->plan->plane + it->offset;
            REAL *ours = host->weights + plane * host->n_numbers + host->own[p];
            for (int64_t r = 0; r < it->n_rows; r++) {
                REAL *to = is_back ? theirs : ours, *from = is_back ? ours : theirs;
                memcpy(to, from, it->n_columns * sizeof(REAL));
                theirs += it->n_columns, ours += PADDED(it->n_columns);
            }
        }
    }
}

/* Copy the samples with these indices, as rows and as the first value. */
static void NAME(gather)(NAME(host) *host, const int64_t *numbers, int64_t n)
{
    const job *work = host->work;
    const int64_t D = host->plan->sizes[0], K = host->plan->sizes[host->plan->output];
    const int64_t B = host->padded_batch, width = PADDED(D);
    if (n < B || D < width) memset(host->rows, 0, B * width * sizeof(REAL));
    for (int64_t b = 0; b < n; b++) {
        memcpy(host->rows + b * width, (const REAL *)work->inputs + numbers[b] * D,
               D * sizeof(REAL));
        if (work->how->objective == SQUARED_ERROR)
            host->wanted[b] = (const REAL *)work->targets + numbers[b] * K;
        else
            host->classes[b] = ((const int64_t *)work->targets)[numbers[b]];
    }
    NAME(turn)(host->rows, width, B, D, host->values, B);
}

/* Add the cross-entropy of n samples to `loss` and the number of correct predictions to `hits`; if
 * asked, write the gradient of the mean loss to the output's slopes. */
static void NAME(compare_classes)(const NAME(host) *host, int64_t n, int needs_slopes,
                                  double *loss, double *hits)
{
    const int64_t output = host->plan->output, K = host->plan->sizes[output];
    const int64_t B = host->padded_batch;
    const REAL *logits = host->values + host->at[output] * B;
    REAL *shares = needs_slopes ? host->slopes + host->at[output] * B : host->turned;
    REAL most[MAX_SAMPLES], sums[MAX_SAMPLES];
    for (int64_t b = 0; b < B; b++) most[b] = logits[b], sums[b] = 0;
    for (int64_t k = 1; k < K; k++)
        for (int64_t b = 0; b < B; b++)
            most[b] = logits[k * B + b] > most[b] ? logits[k * B + b] : most[b];
    for (int64_t k = 0; k < K; k++)
        for (int64_t b = 0; b < B; b++) {
            shares[k * B + b] = EXP(logits[k * B + b] - most[b]);
            sums[b] += shares[k * B + b];
        }
    for (int64_t b = 0; b < n; b++) {
        const int64_t target = host->classes[b];
        int64_t guess = 0;
        *loss += (REAL)(LOG(sums[b]) + most[b] - logits[target * B + b]);
        for (int64_t k = 1; k < K && !needs_slopes; k++) {
            const REAL best = logits[guess * B + b], other = logits[k * B + b];
            if (other > best || (isnan(other) && !isnan(best))) guess = k;
        }
        *hits += guess == target;
    }
    if (!needs_slopes) return;
    for (int64_t b = 0; b < B; b++) sums[b] = b < n ? 1 / (sums[b] * n) : 0;
    for (int64_t k = 0; k < K; k++)
        for (int64_t b = 0; b < B; b++) shares[k * B + b] *= sums[b];
    for (int64_t b = 0; b < n; b++) shares[host->classes[b] * B + b] -= (REAL)1 / n;
}

/* Add the squared error of n samples, the mean over their outputs, to `loss`; if asked, write the
 * gradient of the mean loss to the output's slopes. */
static void NAME(compare_numbers)(const NAME(host) *host, int64_t n, int needs_slopes,
                                  double *loss)
{
    const int64_t output = host->plan->output, K = host->plan->sizes[output];
    const int64_t B = host->padded_batch;
    const REAL *outputs = host->values + host->at[output] * B, slope = (REAL)2 / (n * K);
    REAL *slopes = needs_slopes ? host->slopes + host->at[output] * B : NULL;
    for (int64_t b = 0; b < n; b++) {
        REAL sum = 0;
        for (int64_t k = 0; k < K; k++) {
            const REAL error = outputs[k * B + b] - host->wanted[b][k];
            sum += error * error;
            if (slopes) slopes[k * B + b] = error * slope;
        }
        *loss += sum / K;
    }
}

/* Add the losses of n samples to `loss` and their metrics to `metric`; if asked, write the gradient
 * of the mean loss to the output's slopes, which are zero for padding. */
static void NAME(compare)(const NAME(host) *host, int64_t n, int needs_slopes, double *loss,
                          double *metric)
{
    if (host->work->how->objective == SQUARED_ERROR) {
        NAME(compare_numbers)(host, n, needs_slopes, loss);
        *metric = *loss;
    } else {
        NAME(compare_classes)(host, n, needs_slopes, loss, metric);
    }
}

/* Update n parameters by their gradient like torch's optimizers. */
static void NAME(move)(const rule *how, double rate, double n_steps, int64_t n, int64_t plane,
                       REAL *restrict weights, REAL *restrict gradient)
{
    REAL *restrict mean = weights + plane, *restrict square = mean + plane;
    const REAL small_rate = rate, decay = how->weight_decay, keep = 1 - rate * how->weight_decay;
    const REAL beta1 = 1 - how->beta1, beta2 = how->beta2, rest = 1 - how->beta2;
    for (int64_t j = 0; j < n && decay && how->kind == ADAMW; j++) weights[j] *= keep;
    for (int64_t j = 0; j < n && decay && how->kind != ADAMW; j++)
        gradient[j] += weights[j] * decay;
    if (how->kind == SGD) {
        const REAL momentum = how->momentum;
        for (int64_t j = 0; j < n && momentum; j++)
            gradient[j] = mean[j] = mean[j] * momentum + gradient[j];
        for (int64_t j = 0; j < n; j++) weights[j] -= gradient[j] * small_rate;
        return;
    }
    const double step_size = rate / (1 - pow(how->beta1, n_steps));
    const REAL factor = 1 / (step_size * sqrt(1 - pow(how->beta2, n_steps)));
    const REAL floor = how->eps / step_size;
    for (int64_t j = 0; j < n; j++) {
        mean[j] += beta1 * (gradient[j] - mean[j]);
        square[j] = square[j] * beta2 + rest * gradient[j] * gradient[j];
        weights[j] -= mean[j] / (SQRT(square[j]) * factor + floor);
    }
}

/* Add the squared gradient norms to their columns of `squares`, then update all parameters. Those
 * that follow one another with the same rate and age are updated at once. */
static void NAME(update)(const NAME(host) *host, int64_t step, double *squares)
{
    const program *plan = host->plan;
    const job *work = host->work;
    int64_t start = 0;
    for (int64_t p = 0; p < plan->n_parameters; p++) {
        const parameter *it = &plan->parameters[p], *next = it + 1;
        const int64_t first = host->own[p], end = first + it->n_rows * PADDED(it->n_columns);
        NAME(vector) sums = {0};
        for (int64_t j = first; j < end; j += LANES)
            sums += LOAD(host->gradient + j) * LOAD(host->gradient + j);
        squares[it->column] += NAME(total)(sums);
        if (p + 1 < plan->n_parameters && it->factor == next->factor &&
            work->steps[it->index] == work->steps[next->index])
            continue;
        NAME(move)
        (work->how, work->rate * it->factor, work->steps[it->index] + step + 1, end - start,
         host->n_numbers, host->weights + start, host->gradient + start);
        start = end;
    }
}

static int64_t NAME(train_scratch)(const job *work)
{
    NAME(host) host;
    return NAME(lay_out)(&host, work, work->batch, 1, NULL);
}

/* Train a host for an epoch; write the loss and the squared gradient norms of each step, then the
 * loss of the last batch after the last step, then 0 if all parameters and buffers are finite. */
static void NAME(train)(const job *work, void *memory)
{
    NAME(host) host;
    const rule *how = work->how;
    const program *plan = work->plan;
    const int64_t n_planes = how->kind != SGD ? 3 : how->momentum ? 2 : 1;
    NAME(lay_out)(&host, work, work->batch, 1, memory);
    host.is_training = host.is_observing = 1;
    NAME(carry)(&host, n_planes, 0);
    memset(host.gradient, 0, host.n_numbers * sizeof(REAL));
    for (int64_t step = 0; step < work->n_batches; step++) {
        double loss = 0, metric = 0;
        NAME(gather)(&host, work->numbers + step * work->batch, work->batch);
        NAME(forward)(&host);
        memset(host.slopes, 0, host.n_values * host.padded_batch * sizeof(REAL));
        NAME(compare)(&host, work->batch, 1, &loss, &metric);
        NAME(backward)(&host);
        work->losses[step] = (REAL)(loss / work->batch);
        NAME(update)(&host, step, work->squares + step * work->n_columns);
    }
    double loss = 0, metric = 0, rest = 0;
    host.is_observing = 0;
    NAME(forward)(&host);
    NAME(compare)(&host, work->batch, 1, &loss, &metric);
    work->losses[work->n_batches] = (REAL)(loss / work->batch);
    NAME(carry)(&host, n_planes, 1);
    for (int64_t p = 0; p < plan->n_parameters; p++)
        work->steps[plan->parameters[p].index] += work->n_batches;
    for (int64_t j = 0; j < host.n_numbers; j++) rest += host.weights[j] - host.weights[j];
    for (int64_t i = 0; i < plan->n_ops; i++) {
        const op *it = &plan->ops[i];
        const REAL *means = (REAL *)work->memory + it->mean;
        const REAL *variances = (REAL *)work->memory + it->variance;
        const int64_t C = it->kind == BATCH_NORM ? plan->parameters[it->weight].n_columns : 0;
        for (int64_t c = 0; c < C; c++)
            rest += (means[c] - means[c]) + (variances[c] - variances[c]);
    }
    work->losses[work->n_batches + 1] = rest;
}

static int64_t NAME(judge_scratch)(const job *work)
{
    NAME(host) host;
    return NAME(lay_out)(&host, work, JUDGED_AT_ONCE, 0, NULL);
}

/* Write the sums of a host's losses and metrics on consecutive samples. */
static void NAME(judge)(const job *work, void *memory)
{
    NAME(host) host;
    double *loss = work->losses, *metric = work->losses + 1;
    NAME(lay_out)(&host, work, JUDGED_AT_ONCE, 0, memory);
    host.is_training = host.is_observing = 0;
    NAME(carry)(&host, 1, 0);
    *loss = *metric = 0;
    for (int64_t first = 0; first < work->n_batches; first += JUDGED_AT_ONCE) {
        int64_t numbers[JUDGED_AT_ONCE];
        const int64_t left = work->n_batches - first;
        const int64_t n = left < JUDGED_AT_ONCE ? left : JUDGED_AT_ONCE;
        for (int64_t b = 0; b < n; b++) numbers[b] = work->numbers[0] + first + b;
        NAME(gather)(&host, numbers, n);
        NAME(forward)(&host);
        NAME(compare)(&host, n, 0, loss, metric);
    }
}

#undef LOAD
#undef STORE
#undef PADDED
