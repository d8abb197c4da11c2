#include "device/verbs/verbs_channel.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/log.hpp"
#include "device/verbs/verbs_error.hpp"

namespace pollcore {

VerbsChannel::VerbsChannel(ibv_context* context) : channel_(ibv_create_comp_channel(context)) {
    const char* const device = ibv_get_device_name(context->device);
    if (channel_ == nullptr) {
        throw verbs_error(errno, fmt::format("cannot make a completion channel on RDMA device {}", device));
    }
    const int flags = ::fcntl(channel_->fd, F_GETFL);
    if (flags < 0 || ::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        const int error = errno;
        (void)ibv_destroy_comp_channel(channel_);
        throw verbs_error(error,
                          fmt::format("cannot make a completion channel of RDMA device {} non-blocking", device));
    }
}

VerbsChannel::~VerbsChannel() {
    if (const int error = ibv_destroy_comp_channel(channel_); error != 0) {
        // libibverbs still counts a CQ that could not be destroyed. The kernel must not keep the device for it.
        ::close(channel_->fd);
        log_error("cannot destroy a completion channel, so its memory stays allocated: {}", std::strerror(error));
    }
}

int VerbsChannel::next_event(ibv_cq*& cq) noexcept {
    void* context = nullptr;
    for (;;) {
        if (ibv_get_cq_event(channel_, &cq, &context) == 0) {
            return 0;
        }
        if (errno != EINTR) {
            return errno;
        }
    }
}

}  // namespace pollcore
