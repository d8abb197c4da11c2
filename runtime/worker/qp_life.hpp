// The states of a queue pair's life and their transitions, as a table.
//
// Thread safety: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "pollcore/queue_pair.hpp"

namespace pollcore {

enum class QpLife : std::uint8_t {
    reset,    ///< accepts nothing (RESET)
    init,     ///< accepts receives
    ready,    ///< accepts all requests
    failing,  ///< in error; end_life() will run later in the step
    /// in error, and end_life() has run
    failed,
    draining,  ///< waits until nothing is in flight, or until the worker stops waiting
    emptying,  ///< waits until its CQs have been emptied (WorkerCq::emptied_since)
    gone,      ///< belongs to the control thread
};

enum class QpEvent : std::uint8_t {
    open,      ///< the QP left RESET
    activate,  ///< the QP reached RTS
    fail,      ///< a bad completion, a fault of the flow control, a failed CQ, or a command
    end_life,  ///< WorkerQp::end_life() runs
    leave,     ///< a command: the QP must be drained, or was destroyed, reset or lost with its device
    drained,   ///< nothing is in flight, or the worker stops waiting
    emptied,   ///< its CQs hold no more of its completions
    renew,     ///< the QP was reset: the next life begins
    forget,    ///< the QP was destroyed
};

inline constexpr std::size_t kQpLives = 8;
inline constexpr std::size_t kQpEvents = 9;

namespace qp_life_detail {

inline constexpr QpLife kNone{0xff};  // the event changes nothing
using Row = std::array<QpLife, kQpEvents>;
using enum QpLife;

// clang-format off
inline constexpr std::array<Row, kQpLives> kTable{{
    //               open   activate fail     end_life leave     drained   emptied renew  forget
    /* reset */    Row{init,  kNone, failing, kNone,   kNone,    kNone,    kNone,  kNone, kNone},
    /* init */     Row{kNone, ready, failing, kNone,   kNone,    kNone,    kNone,  kNone, kNone},
    /* ready */    Row{kNone, kNone, failing, kNone,   kNone,    kNone,    kNone,  kNone, kNone},
    /* failing */  Row{kNone, kNone, kNone,   failed,  kNone,    kNone,    kNone,  kNone, kNone},
    /* failed */   Row{kNone, kNone, kNone,   kNone,   draining, kNone,    kNone,  reset, gone},
    /* draining */ Row{kNone, kNone, kNone,   kNone,   draining, emptying, kNone,  kNone, kNone},
    /* emptying */ Row{kNone, kNone, kNone,   kNone,   draining, kNone,    failed, kNone, kNone},
    /* gone */     Row{kNone, kNone, kNone,   kNone,   kNone,    kNone,    kNone,  kNone, kNone},
}};
// clang-format on

}  // namespace qp_life_detail

/// Returns the life that follows `event`, or `life` itself if the event changes nothing.
[[nodiscard]] constexpr QpLife after(QpLife life, QpEvent event) noexcept {
    const QpLife next = qp_life_detail::kTable[static_cast<std::size_t>(life)][static_cast<std::size_t>(event)];
    return next == qp_life_detail::kNone ? life : next;
}
/// Returns true if no request of a session is posted to the queue pair any more.
[[nodiscard]] constexpr bool in_error(QpLife life) noexcept {
    return life >= QpLife::failing;
}
/// The state that sessions see for `life`.
[[nodiscard]] constexpr QpState state_of(QpLife life) noexcept {
    return life == QpLife::reset   ? QpState::reset
           : life == QpLife::init  ? QpState::init
           : life == QpLife::ready ? QpState::ready
           : life == QpLife::gone  ? QpState::closed
                                   : QpState::error;
}

}  // namespace pollcore
