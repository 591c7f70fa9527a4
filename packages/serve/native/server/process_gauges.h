// Gauges of the memory and the start of this process.
#ifndef SPARRING_SERVE_SERVER_PROCESS_GAUGES_H_
#define SPARRING_SERVE_SERVER_PROCESS_GAUGES_H_

#include "server/metrics.h"

namespace sparring::serve {

// Appends start_seconds, and memory_bytes and memory_limit_bytes if the system reports them, with the
// meaning that sparring_cli/metrics/process.py documents.
void add_process_gauges(Metrics::Gauges& gauges);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_PROCESS_GAUGES_H_
