// Records that the kernel hands out one by one when a descriptor is read: completion channels, asynchronous events, and
// rdma_cm's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "file.hpp"

namespace mlx5_model {

/// How many records about one object were read. The kernel reports it when the object is destroyed, and the libraries
/// wait until the program has acknowledged as many.
using Reported = std::shared_ptr<std::atomic<std::uint32_t>>;
inline Reported none_reported() {
    return std::make_shared<std::atomic<std::uint32_t>>(0);
}

/// The descriptor is an eventfd that is readable as long as there are records, so poll(2) and the descriptor's flags
/// are the kernel's own.
class EventQueue : public File {
public:
    using Record = std::vector<std::uint8_t>;

    /// Throws std::system_error when there is no descriptor left.
    EventQueue();

    /// Owned by the program that it is given to, as descriptors are.
    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    /// `reported` is incremented when the record is read.
    void push(const void* record, std::size_t size, Reported reported = nullptr);
    template <class Event>
    void push(const Event& event, Reported reported = nullptr) {
        push(&event, sizeof event, std::move(reported));
    }
    /// Drops the unread records of one object; returns how many.
    std::size_t forget(const Reported& reported);
    void forget_all();
    /// From now on a read of an empty queue fails with EIO, as after the removal of a device.
    void end();
    /// Takes the next record. Waits for it unless the descriptor has O_NONBLOCK. Returns 0 or -errno.
    long take(Record& record);

    /// Reads one record, cut to `size`.
    long read(void* to, std::size_t size) override;
    /// Objects may still hold the queue afterwards, and another file may get the descriptor's number.
    void closed() override;

private:
    struct Waiting {
        Record record;
        Reported reported;
    };
    void make_readable();
    void make_unreadable();

    int descriptor_;
    std::mutex lock_;
    std::deque<Waiting> records_;
    bool ended_ = false;
    bool closed_ = false;
};

}  // namespace mlx5_model
