// Ends things whose end may take long or wait for somebody else: on threads that exist for that, so that nobody else
// waits.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace pollcore {

/// For whom something is ended. The jobs of one owner run one after the other; those of different owners do not wait
/// for each other, as long as no more than kDisposersMax owners have a job that does not return.
using DisposalOwner = std::uint64_t;
inline constexpr int kDisposersMax = 64;
/// Memory is unmapped for nobody in particular, on a thread of its own: that waits for nobody, and no descriptor that
/// does not let go delays it.
inline constexpr DisposalOwner kMemoryDisposal = ~DisposalOwner{0};

/// Runs `job`, which does not throw, some time later. Without memory or a thread for it, it runs when the next one
/// finds them, or never.
void dispose(DisposalOwner owner, std::function<void()> job) noexcept;
/// For who causes such jobs: waits until no more than `most` are waiting, or for `within`. Without it they could come
/// faster than they are done.
void let_disposal_catch_up(std::size_t most, std::chrono::milliseconds within) noexcept;

}  // namespace pollcore
