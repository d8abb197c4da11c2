// The maker of a session, and the descriptors by which its two sides wake each other.
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
    /// Whether this process is a forked child of the one that made it: its threads are not here, and its objects are
    /// the parent's.
    [[nodiscard]] bool is_forked() const noexcept;
    /// Whether its process has made this queue pair and has not closed it. Any thread; does not wait.
    [[nodiscard]] virtual bool has_queue_pair(QpHandle qp) const noexcept = 0;
    /// Retires the session's queue pairs and detaches it from its worker; afterwards the rings are the caller's alone,
    /// with the last completions in them.
    virtual void close_session(std::uint32_t session_id) noexcept = 0;
    /// Releases the session's shared memory.
    virtual void release_session(std::uint32_t session_id) noexcept = 0;

private:
    int process_;
};

/// The descriptors by which the two sides of a session wake each other (D23). They live as long as the SessionHost.
struct SessionWaking {
    int worker_fd = -1;                ///< eventfd on which the worker sleeps; -1: it never sleeps
    int application_fd = -1;           ///< descriptor that the worker writes: Session::event_fd()
    std::chrono::nanoseconds spin{0};  ///< how long wait() spins before it sleeps
    /// application_fd is the receiving end of a socket pair and no eventfd: the worker trusts no other process.
    bool application_socket = false;
};

}  // namespace pollcore
