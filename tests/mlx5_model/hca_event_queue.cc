#include "hca_event_queue.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace mlx5_model {

EventQueue::EventQueue() : descriptor_(::eventfd(0, EFD_CLOEXEC)) {
    if (descriptor_ < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
}

// The descriptor is readable as long as there is a record to take, and always after end(). The lock must be held, so
// that these functions never block: the eventfd's count changes only between 0 and 1.
void EventQueue::make_readable() {
    const std::uint64_t one = 1;
    (void)libc::write(descriptor_, &one, sizeof one);
}

void EventQueue::make_unreadable() {
    std::uint64_t count = 0;
    (void)libc::read(descriptor_, &count, sizeof count);
}

void EventQueue::push(const void* record, std::size_t size, Reported reported) {
    const auto* bytes = static_cast<const std::uint8_t*>(record);
    const std::lock_guard guard(lock_);
    if (ended_ || closed_) {
        return;
    }
    records_.push_back({Record(bytes, bytes + size), std::move(reported)});
    if (records_.size() == 1) {
        make_readable();
    }
}

std::size_t EventQueue::forget(const Reported& reported) {
    const std::lock_guard guard(lock_);
    if (closed_) {
        return 0;
    }
    const std::size_t gone =
        std::erase_if(records_, [&](const Waiting& waiting) { return waiting.reported == reported; });
    if (gone != 0 && records_.empty() && !ended_) {
        make_unreadable();
    }
    return gone;
}

void EventQueue::forget_all() {
    const std::lock_guard guard(lock_);
    if (!records_.empty() && !ended_) {
        make_unreadable();
    }
    records_.clear();
}

void EventQueue::end() {
    const std::lock_guard guard(lock_);
    if (ended_ || closed_) {
        return;
    }
    ended_ = true;
    if (records_.empty()) {
        make_readable();
    }
}

void EventQueue::closed() {
    const std::lock_guard guard(lock_);
    closed_ = true;
    records_.clear();
}

long EventQueue::take(Record& record) {
    for (;;) {
        {
            const std::lock_guard guard(lock_);
            if (!records_.empty()) {
                record = std::move(records_.front().record);
                if (records_.front().reported != nullptr) {
                    records_.front().reported->fetch_add(1);
                }
                records_.pop_front();
                if (records_.empty() && !ended_) {
                    make_unreadable();
                }
                return 0;
            }
            if (ended_) {
                return -EIO;
            }
        }
        if ((::fcntl(descriptor_, F_GETFL) & O_NONBLOCK) != 0) {
            return -EAGAIN;
        }
        pollfd waiting{.fd = descriptor_, .events = POLLIN, .revents = 0};
        if (::poll(&waiting, 1, -1) < 0) {
            return -errno;
        }
    }
}

long EventQueue::read(void* to, std::size_t size) {
    Record record;
    if (const long error = take(record); error != 0) {
        return error;
    }
    size = std::min(size, record.size());
    std::memcpy(to, record.data(), size);
    return static_cast<long>(size);
}

}  // namespace mlx5_model
