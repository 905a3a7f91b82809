/* The loops of one instruction set, ISA, in single and in double precision. */

#define PASTE(x, isa, real) x##_##isa##_##real
#define NAMED(x, isa, real) PASTE(x, isa, real)
#define NAME(x) NAMED(x, ISA, REAL)
#define LANES (VECTOR_BYTES / (int64_t)sizeof(REAL))

#define REAL float
#define EXP expf
#define LOG logf
#define ERF erff
#define TANH_OF fast_tanh
#define SQRT sqrtf
#include "_conv3x3_kernel.h"
#include "_vector_hosts_products.h"
#include "_vector_hosts_maps.h"
#include "_vector_hosts_layers.h"
#include "_vector_hosts_runs.h"
#undef REAL
#undef EXP
#undef LOG
#undef ERF
#undef TANH_OF
#undef SQRT

#define REAL double
#define EXP exp
#define LOG log
#define ERF erf
#define TANH_OF tanh
#define SQRT sqrt
#include "_conv3x3_kernel.h"
#include "_vector_hosts_products.h"
#include "_vector_hosts_maps.h"
#include "_vector_hosts_layers.h"
#include "_vector_hosts_runs.h"
#undef REAL
#undef EXP
#undef LOG
#undef ERF
#undef TANH_OF
#undef SQRT

#undef PASTE
#undef NAMED
#undef NAME
#undef LANES
#undef ISA
#undef VECTOR_BYTES
