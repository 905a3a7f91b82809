/* A 3x3 convolution, as _conv3x3_kernel.h computes it for each instruction set. */
#ifndef CONV3X3_H
#define CONV3X3_H
#include <stdint.h>

/* Sums kept in registers at a time: outputs times vectors of samples or, for the weight gradient,
 * outputs times inputs. Twelve sums leave four of sixteen registers for the factors. */
#define MAX_SUMS 12
#define MAX_OUTPUTS 6
#define MAX_VECTORS 4
#define MAX_PAIR_OUTPUTS 4
#define MAX_PAIR_INPUTS 3

/* Elements of a channel, in whole rows, that the weight gradient processes at a time. */
#define BAND 512

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* One of the three products. `n_in` and `n_out` are the sizes of one group in the product: the
 * inputs of the input gradient are the outputs of the convolution. */
typedef struct {
    const void *input;    /* [G, n_in, H, W, B] */
    const void *d_output; /* [G, n_out, H, W, B], for the gradient of the weights */
    const void *weight;   /* [G, n_out, n_in, 3, 3], or n_in before n_out if transposed */
    const void *bias;     /* [G, n_out] or NULL */
    void *output;         /* [G, n_out, H, W, B], or the gradient of the weights */
    int64_t n_groups, n_in, n_out, height, width, batch;
    int64_t weight_row;                 /* from one output's weights to the next's */
    int is_transposed, adds;            /* `adds`: to what the output holds already */
} conv_job;

/* Split items into blocks of at most `most` whose sizes differ by at most one. */
static inline int64_t count_blocks(int64_t n, int64_t most)
{
    return (n + most - 1) / most;
}

static inline int64_t first_of(int64_t block, int64_t n, int64_t n_blocks)
{
    return block * n / n_blocks;
}

#endif
