// Commands of DPDK's telemetry socket that read this process's statistics segments (D57).
//
// EAL answers each client in a thread of its own, which outlives runtimes. The commands only read the segments, as any
// other process would, so they share nothing with the control thread, and find nothing when the runtime has ended.
//
// Thread safety: any thread may call the function.
#pragma once

namespace pollcore::statistics {

/// Registers the commands with EAL, once in the life of the process. They cannot be taken back.
void offer_telemetry() noexcept;

}  // namespace pollcore::statistics
