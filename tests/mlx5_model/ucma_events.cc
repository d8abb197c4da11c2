#include "ucma_events.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "file.hpp"

namespace mlx5_model {

CmEvents::CmEvents() : descriptor_(::eventfd(0, EFD_CLOEXEC)) {
    if (descriptor_ < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
}

void CmEvents::push(const CmEvent& event) {
    events_.push_back(event);
    if (events_.size() == 1) {
        const std::uint64_t one = 1;
        (void)libc::write(descriptor_, &one, sizeof one);
    }
}

void CmEvents::pop() {
    events_.pop_front();
    if (events_.empty()) {
        drained();
    }
}

std::vector<CmEvent> CmEvents::take_back(const CmId& id) {
    std::vector<CmEvent> taken;
    const auto of_id = [&](const CmEvent& event) { return event.about == &id || event.request == &id; };
    std::copy_if(events_.begin(), events_.end(), std::back_inserter(taken), of_id);
    std::erase_if(events_, of_id);
    if (!taken.empty() && events_.empty()) {
        drained();
    }
    return taken;
}

long CmEvents::wait() const {
    const int flags = ::fcntl(descriptor_, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) != 0) {
        return flags < 0 ? -errno : -EAGAIN;
    }
    pollfd one{descriptor_, POLLIN, 0};
    return ::poll(&one, 1, -1) < 0 ? -errno : 0;
}

// Never blocks, because the eventfd's count is 1.
void CmEvents::drained() {
    std::uint64_t count = 0;
    (void)libc::read(descriptor_, &count, sizeof count);
}

}  // namespace mlx5_model
