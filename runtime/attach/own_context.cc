#include "attach/own_context.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include <rdma/ib_user_ioctl_verbs.h>

#include "base/log.hpp"
#include "base/uverbs_command.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

constexpr int kTriesToEnd = 1000;

// The open command descriptors, for the child of a fork(2).
class OpenCommands {
public:
    static OpenCommands& get() {
        static OpenCommands& all = *new OpenCommands;
        return all;
    }
    void add(int fd) {
        const std::lock_guard lock(mutex_);
        fds_.insert(fd);
    }
    /// Closes it. A child of a fork that comes before has closed it, too, and a later child has none.
    void close(UniqueFd& fd) noexcept {
        const std::lock_guard lock(mutex_);
        fds_.erase(fd.get());
        fd.reset();
    }

private:
    OpenCommands() {
        // The thread that forks holds the mutex meanwhile, so that the set is whole in the child.
        if (const int error =
                ::pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().close_all(); });
            error != 0) {
            throw Error(error, "no handler for the child of a fork");
        }
    }
    void close_all() noexcept {
        for (const int fd : fds_) {
            (void)::close(fd);
        }
        fds_.clear();
        mutex_.unlock();
    }

    std::mutex mutex_;
    std::set<int> fds_;
};

std::uint32_t flags_of(const Access& access) noexcept {
    return (access.local_write ? IB_UVERBS_ACCESS_LOCAL_WRITE : 0) |
           (access.remote_write ? IB_UVERBS_ACCESS_REMOTE_WRITE : 0) |
           (access.remote_read ? IB_UVERBS_ACCESS_REMOTE_READ : 0) |
           (access.remote_atomic ? IB_UVERBS_ACCESS_REMOTE_ATOMIC : 0) |
           (access.relaxed_ordering ? IB_UVERBS_ACCESS_RELAXED_ORDERING : 0);
}

}  // namespace

OwnContext::OwnContext(UniqueFd command, std::uint32_t driver_id)
    : driver_id_(driver_id), command_(std::move(command)) {
    OpenCommands::get().add(command_.get());
}

OwnContext::~OwnContext() {
    end();
}

template <class Call>
OwnContext::Region OwnContext::register_by(const char* what, std::size_t bytes, Call&& call) {
    const std::lock_guard lock(mutex_);
    if (!command_.valid()) {
        throw Error(ECONNRESET, "the daemon is gone, or has ended this attachment; its log says why");
    }
    std::set<std::uint32_t> one{0};
    auto node = one.extract(one.begin());  // made in advance, so that a region is not lost for lack of memory
    Region made;
    if (const int error = call(made); error != 0) {
        throw Error(error == EPROTONOSUPPORT ? EOPNOTSUPP : error,
                    "registering " + std::to_string(bytes) + " bytes of " + what +
                        (error == ENOMEM ? ": raise this process's RLIMIT_MEMLOCK" : ""));
    }
    node.value() = made.handle;
    regions_.insert(std::move(node));
    return made;
}

OwnContext::Region OwnContext::register_memory(std::uint32_t pd, const void* data, std::size_t bytes,
                                               std::uint64_t iova, const Access& access) {
    return register_by("this process's own memory", bytes, [&](Region& made) {
        const ib_uverbs_reg_mr asked{.response = 0,
                                     .start = reinterpret_cast<std::uintptr_t>(data),
                                     .length = bytes,
                                     .hca_va = iova,
                                     .pd_handle = pd,
                                     .access_flags = flags_of(access)};
        ib_uverbs_reg_mr_resp answer{};
        const int error = uverbs_write(driver_id_, IB_USER_VERBS_CMD_REG_MR)
                              .in(UVERBS_ATTR_CORE_IN, asked)
                              .out(UVERBS_ATTR_CORE_OUT, answer)
                              .send(command_.get());
        made = {.handle = answer.mr_handle, .lkey = answer.lkey, .rkey = answer.rkey};
        return error;
    });
}

OwnContext::Region OwnContext::register_dmabuf(std::uint32_t pd, const DmabufRange& range, std::uint64_t iova,
                                               const Access& access) {
    return register_by("a dma-buf", range.bytes, [&](Region& made) {
        const std::uint64_t bytes = range.bytes;
        const std::uint32_t flags = flags_of(access);
        UverbsRequest request(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, driver_id_);
        request.name(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0)
            .name(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd)
            .in(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, range.offset)
            .in(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, bytes)
            .in(UVERBS_ATTR_REG_DMABUF_MR_IOVA, iova)
            .name(UVERBS_ATTR_REG_DMABUF_MR_FD, static_cast<std::uint32_t>(range.fd))
            .in(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, flags)
            .out(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, made.lkey)
            .out(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, made.rkey);
        const int error = request.send(command_.get());
        made.handle = request.handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
        return error;
    });
}

int OwnContext::dereg_mr(std::uint32_t handle) const noexcept {
    return uverbs_dereg_mr(command_.get(), driver_id_, handle);
}

void OwnContext::deregister(std::uint32_t handle) {
    const std::lock_guard lock(mutex_);
    if (!command_.valid() || !regions_.contains(handle)) {
        return;
    }
    if (const int error = dereg_mr(handle); error != 0 && error != ENOENT) {
        throw Error(error, "deregistering this process's own memory");
    }
    regions_.erase(handle);
}

void OwnContext::end() noexcept {
    const std::lock_guard lock(mutex_);
    if (!command_.valid()) {
        return;
    }
    for (const std::uint32_t handle : regions_) {
        int error = dereg_mr(handle);
        // EBUSY: another thread is in a system call that names the region.
        for (int tries = 0; error == EBUSY && tries < kTriesToEnd; ++tries) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            error = dereg_mr(handle);
        }
        if (error != 0 && error != ENOENT) {
            log_error("a region of own memory does not end: {}", std::strerror(error));
        }
    }
    regions_.clear();
    OpenCommands::get().close(command_);
}

}  // namespace pollcore
