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

/// How many records about one object were read. The kernel says it when the object is destroyed, and the libraries wait
/// until the program has acknowledged as many.
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

    /// Owned by whoever it is given to, as descriptors are.
    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    /// `reported` is counted up when the record is read.
    void push(const void* record, std::size_t size, Reported reported = nullptr);
    template <class Event>
    void push(const Event& event, Reported reported = nullptr) {
        push(&event, sizeof event, std::move(reported));
    }
    /// Takes back the records of one object that nobody has read yet; returns how many.
    std::size_t forget(const Reported& reported);
    void forget_all();
    /// From now on a read of an empty queue says EIO, as when the device has gone.
    void end();
    /// The next record. Waits as the descriptor's flags say; else -errno.
    long take(Record& record);

    /// One record, cut to `size`.
    long read(void* to, std::size_t size) override;
    /// Objects may still hold the queue, and the descriptor's number may be another file's next.
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
