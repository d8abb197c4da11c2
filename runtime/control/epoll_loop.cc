#include "control/epoll_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "base/log.hpp"
#include "control/eal.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

// How long to wait after a failure, until memory may be available again.
constexpr std::chrono::milliseconds kAgain{10};

}  // namespace

EpollLoop::EpollLoop(Executor& executor, const std::vector<int>& cpus, std::chrono::milliseconds period,
                     std::function<void()> tick)
    : executor_(executor),
      period_(period),
      tick_(std::move(tick)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll_.valid() || !wake_.valid()) {
        throw Error(errno, "cannot make the control loop's descriptors; is the limit on open files too low?");
    }
    epoll_event event{.events = EPOLLIN, .data = {.fd = wake_.get()}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
        throw Error(errno, "cannot watch the control loop's own descriptor");
    }
    thread_ = std::thread([this, cpus] {
        become_helper("pollcore-loop", cpus);
        loop();
    });
}

EpollLoop::~EpollLoop() {
    stop();
}

void EpollLoop::stop() noexcept {
    if (!thread_.joinable()) {
        return;
    }
    const std::uint64_t one = 1;
    // This write cannot fail: an eventfd refuses a write only if its count is at the limit, and nobody else writes to
    // this eventfd.
    (void)!::write(wake_.get(), &one, sizeof(one));
    thread_.join();
}

void EpollLoop::arm(int fd, int operation) {
    // EPOLLONESHOT is needed because the descriptor stays readable until the control thread has run the job, which may
    // take long.
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.fd = fd}};
    if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
        throw Error(errno, fmt::format("cannot watch descriptor {}", fd));
    }
}

void EpollLoop::watch(int fd, std::function<void()> job) {
    {
        auto shared = std::make_shared<const std::function<void()>>(std::move(job));
        const std::lock_guard lock(mutex_);
        jobs_[fd] = std::move(shared);
    }
    try {
        arm(fd, EPOLL_CTL_ADD);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        jobs_.erase(fd);
        throw;
    }
}

void EpollLoop::forget(int fd) noexcept {
    const std::lock_guard lock(mutex_);
    if (jobs_.erase(fd) != 0) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
}

void EpollLoop::loop() noexcept {
    std::array<epoll_event, 16> events{};
    auto next_tick = std::chrono::steady_clock::now() + period_;
    for (;;) {
        const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next_tick - std::chrono::steady_clock::now());
        const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(std::max<long>(wait.count(), 0)));
        for (int i = 0; i < n; ++i) {
            const int fd = events[static_cast<std::size_t>(i)].data.fd;
            if (fd == wake_.get()) {
                return;
            }
            post(fd);
        }
        if (std::chrono::steady_clock::now() >= next_tick) {
            next_tick = std::chrono::steady_clock::now() + period_;
            post_tick();
        }
    }
}

void EpollLoop::post(int fd) noexcept {
    try {
        executor_.post_always([this, fd] { run(fd); });
    } catch (const std::exception& error) {
        log_error("control loop: {}; a descriptor is looked at again later", error.what());
        std::this_thread::sleep_for(kAgain);
        watch_on(fd);
    }
}

void EpollLoop::watch_on(int fd) noexcept {
    const std::lock_guard lock(mutex_);
    if (!jobs_.contains(fd)) {
        return;  // forget() was called meanwhile
    }
    try {
        arm(fd, EPOLL_CTL_MOD);
    } catch (const std::exception& error) {
        log_error("control loop: {}; it is not looked at again", error.what());
    }
}

void EpollLoop::post_tick() noexcept {
    if (tick_waits_.exchange(true)) {
        return;
    }
    try {
        executor_.post_always([this] {
            tick_waits_.store(false);
            tick_();
        });
    } catch (const std::exception& error) {
        log_error("control loop: {}; a tick is left out", error.what());
        tick_waits_.store(false);
    }
}

// Runs on the executor. Afterwards the descriptor is watched again, even if the job has thrown.
void EpollLoop::run(int fd) {
    std::shared_ptr<const std::function<void()>> job;
    {
        const std::lock_guard lock(mutex_);
        const auto found = jobs_.find(fd);
        if (found == jobs_.end()) {
            return;
        }
        job = found->second;
    }
    try {
        (*job)();
    } catch (const std::exception& error) {
        log_error("control loop: {}", error.what());
    }
    watch_on(fd);
}

}  // namespace pollcore
