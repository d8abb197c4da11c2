// Static probes (USDT), at which perf, bpftrace and SystemTap can look: see runtime/base/README.md. A probe at which
// nobody looks is one instruction that does nothing. None lies on the hot path.
#pragma once

#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>

/// POLLCORE_PROBE(name, arguments...). Arguments are numbers. The provider is "pollcore".
#define POLLCORE_PROBE(...) STAP_PROBEV(pollcore, __VA_ARGS__)
