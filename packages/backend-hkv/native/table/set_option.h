// Options of a policy that can be set while a table is open; names and values are text.
#ifndef SPARRING_HKV_TABLE_SET_OPTION_H_
#define SPARRING_HKV_TABLE_SET_OPTION_H_

#include "policy.h"

namespace sparring::hkv {

// `epoch`: an integer. `scores`: `given` while the rows of a snapshot are loaded with their
// scores, else `policy`. `calls`: the number of calls that these rows have seen.
// Throws StatusError for an unknown name or a value out of range.
void set_policy_option(Policy& policy, const char* name, const char* value);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_SET_OPTION_H_
