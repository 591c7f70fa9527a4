// Small functions that the kernels share with everybody else must never exist
// out of line: the kernels are compiled for particular processors, and the
// linker might pick such a copy for all. See kernels.h.
#ifndef SPARRING_HKV_TABLE_INLINE_H_
#define SPARRING_HKV_TABLE_INLINE_H_

#define SPARRING_HKV_INLINE [[gnu::always_inline]] inline

#endif  // SPARRING_HKV_TABLE_INLINE_H_
