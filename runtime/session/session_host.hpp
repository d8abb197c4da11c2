// Who made a session, and by what its two sides wake each other.
//
// Thread safety: any.
#pragma once

#include <chrono>
#include <cstdint>

#include "pollcore/handle.hpp"

namespace pollcore {

/// The runtime's side of closing a session. Lives as long as any session made by it.
class SessionHost {
public:
    SessionHost() noexcept;
    virtual ~SessionHost() = default;
    /// This is a forked child of the process that made it: none of its threads are here, and what it has is the
    /// parent's.
    [[nodiscard]] bool is_forked() const noexcept;
    /// Its process has made this queue pair and has not closed it. Any thread; does not wait.
    [[nodiscard]] virtual bool has_queue_pair(QpHandle qp) const noexcept = 0;
    /// Retires the session's queue pairs and detaches it from its worker; afterwards the rings are the caller's alone,
    /// with the last completions in them.
    virtual void close_session(std::uint32_t session_id) noexcept = 0;
    /// Releases the session's shared memory.
    virtual void release_session(std::uint32_t session_id) noexcept = 0;

private:
    int process_;
};

/// By what the two sides of a session wake each other. The descriptors live as long as the SessionHost.
struct SessionWaking {
    int worker_fd = -1;                ///< eventfd on which the worker sleeps; -1: it does not
    int application_fd = -1;           ///< the one that the worker writes: Session::event_fd()
    std::chrono::nanoseconds spin{0};  ///< for so long wait() looks by itself before it sleeps
    bool application_socket =
        false;  ///< that is no eventfd but the receiving end of a socket pair: its worker trusts no other process
};

}  // namespace pollcore
