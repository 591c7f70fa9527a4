// Options of a policy that are set while a table is open; text both.
#ifndef SPARRING_HKV_TABLE_SET_OPTION_H_
#define SPARRING_HKV_TABLE_SET_OPTION_H_

#include "policy.h"

namespace sparring::hkv {

// `epoch`: a whole number. `scores`: `given` while rows of a snapshot are put back with
// their scores, else `policy`. `calls`: how many calls these rows have seen.
// Throws StatusError for another name or a value out of range.
void set_policy_option(Policy& policy, const char* name, const char* value);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_SET_OPTION_H_
