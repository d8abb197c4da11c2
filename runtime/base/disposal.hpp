// Runs jobs that close or free an object, if this may take long or may wait for another process. Dedicated threads run
// the jobs, so no other thread waits.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace pollcore {

/// The user for whom a job runs. Jobs of one owner run one after the other. Jobs of different owners do not wait for
/// each other, as long as fewer than kDisposersMax owners have a job that does not return.
using DisposalOwner = std::uint64_t;
inline constexpr int kDisposersMax = 64;
/// The owner of all jobs that unmap memory. They have their own thread, so a descriptor whose close hangs does not
/// delay them. Unmapping itself waits for no other process.
inline constexpr DisposalOwner kMemoryDisposal = ~DisposalOwner{0};

/// Runs `job` some time later; `job` must not throw. If there is no memory or no thread for `job`, `job` runs later
/// than usual or never. In a forked child, `job` runs at once, on the calling thread.
void dispose(DisposalOwner owner, std::function<void()> job) noexcept;
/// Waits until at most `most` jobs wait, or until `within` has passed. Jobs of kMemoryDisposal do not count. A thread
/// that adds jobs calls this, because it may add them faster than they are done.
void let_disposal_catch_up(std::size_t most, std::chrono::milliseconds within) noexcept;

}  // namespace pollcore
