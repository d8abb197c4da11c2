// Ends things whose end may take long or wait for another process. Threads that exist for this do it, so that nobody
// else waits.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace pollcore {

/// The user for whom something is ended. The jobs of one owner run one after the other; those of different owners do
/// not wait for each other, as long as no more than kDisposersMax owners have a job that does not return.
using DisposalOwner = std::uint64_t;
inline constexpr int kDisposersMax = 64;
/// The owner of all unmapping, which has a thread of its own. Unmapping waits for nobody, and no descriptor whose close
/// hangs delays it.
inline constexpr DisposalOwner kMemoryDisposal = ~DisposalOwner{0};

/// Runs `job`, which does not throw, some time later. Without memory or a thread for it, it runs with the next job
/// that finds them, or never.
void dispose(DisposalOwner owner, std::function<void()> job) noexcept;
/// Waits until at most `most` jobs are waiting, or for `within`. A thread that causes such jobs calls this, since they
/// could come faster than they are done.
void let_disposal_catch_up(std::size_t most, std::chrono::milliseconds within) noexcept;

}  // namespace pollcore
