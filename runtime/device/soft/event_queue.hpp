// Asynchronous events of a device, and who has not acknowledged them yet.
//
// Thread safety: all functions, from any thread. Engines raise events under their lock; this queue's mutex is
// taken last and nothing is called while it is held.
// Events are rare, so a mutex and an allocation are no matter here.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>

#include <infiniband/verbs.h>

namespace pollcore::soft {

class EventQueue {
public:
    EventQueue();
    EventQueue(const EventQueue&) = delete;
    EventQueue& operator=(const EventQueue&) = delete;
    ~EventQueue();

    [[nodiscard]] int fd() const noexcept { return fd_; }

    void raise(ibv_event_type type, ibv_cq* cq) noexcept;
    void raise(ibv_event_type type, ibv_qp* qp) noexcept;
    void raise(ibv_event_type type, ibv_srq* srq) noexcept;
    void raise_port(ibv_event_type type, int port) noexcept;
    void raise_device(ibv_event_type type) noexcept;
    /// Nothing more comes: fd() is readable for good, and take() throws Error(EIO) once the queue is empty.
    void close() noexcept;

    [[nodiscard]] std::optional<ibv_async_event> take();
    void acknowledge(const ibv_async_event& event) noexcept;

    /// Events of the object that were taken and not acknowledged.
    [[nodiscard]] std::uint32_t unacknowledged(const void* object);
    /// Drops the events of the object that nobody has taken.
    void forget(const void* object);

private:
    struct Queued {
        ibv_async_event event;
        const void* object;
    };
    // So many events may wait or be unacknowledged without memory for them being looked for. One that there is none for
    // is lost.
    static constexpr std::size_t kUsual = 64;

    void push(const Queued& queued) noexcept;
    void rest_if_empty() noexcept;
    static const void* object_of(const ibv_async_event& event) noexcept;

    std::mutex mutex_;
    // Each event goes from the third to the first, from there to the second when it is of an object, and back.
    std::list<Queued> queue_;
    std::list<Queued> taken_;
    std::list<Queued> unused_;
    int fd_ = -1;
    bool closed_ = false;
};

}  // namespace pollcore::soft
