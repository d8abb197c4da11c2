#include "base/foreign_fd.hpp"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "base/passed_descriptors.hpp"
#include "base/quiet_thread.hpp"

namespace pollcore {
namespace {

// How long a thread waits for more before it ends.
constexpr std::chrono::seconds kIdle{1};

void close_without_lingering(int fd) noexcept {
    const linger none{.l_onoff = 0, .l_linger = 0};
    (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));  // of what is no socket there is nothing to set
    (void)::close(fd);
}

// More messages than a socket's buffers hold, however small they are.
constexpr int kUnreadMax = 1024;

// Dropped by the kernel they would linger. The socket is shut down: what stands in its queue can still be read. At the end, and for
// a message of no bytes, recvmsg() returns 0, so this stops after as many of those as there can be.
void take_descriptors_out(int socket) noexcept {
    std::array<char, 1> byte;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsPerMessage * sizeof(int))> control;
    for (int nothing = 0; nothing < kUnreadMax;) {
        iovec part{byte.data(), byte.size()};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0) {
            // ECONNRESET is said once, when the other side has closed without having read all.
            if (errno != ECONNRESET && errno != EINTR) {
                return;
            }
            ++nothing;
            continue;
        }
        nothing = got == 0 ? nothing + 1 : 0;
        // Here, one by one: else each socket in the queue of those that wait could add as many as its own queue holds.
        for_each_descriptor(message, close_without_lingering);
    }
}

struct Closed {
    int fd = -1;
    Unread unread = Unread::left;
};

// Of this process. Never destroyed: one that does not let go may outlive everything else.
struct Closers {
    std::mutex mutex;
    std::condition_variable changed;
    std::condition_variable fewer;  // wait
    std::deque<Closed> waiting;
    int threads = 0;
    int idle = 0;
    pid_t process = ::getpid();

    void loop() {
        pthread_setname_np(pthread_self(), "pollcore-close");
        std::unique_lock lock(mutex);
        for (;;) {
            ++idle;
            (void)changed.wait_for(lock, kIdle, [this] { return !waiting.empty(); });
            --idle;
            if (waiting.empty()) {
                --threads;
                return;
            }
            const Closed next = waiting.front();
            waiting.pop_front();
            fewer.notify_all();
            lock.unlock();
            if (next.unread == Unread::taken) {
                take_descriptors_out(next.fd);
            }
            close_without_lingering(next.fd);
            lock.lock();
        }
    }
};

Closers& closers() {
    static Closers& all = *new Closers;
    return all;
}

}  // namespace

void close_elsewhere(int fd, Unread unread) noexcept {
    if (unread == Unread::taken) {
        (void)::shutdown(fd, SHUT_RDWR);  // the other side learns of it at once, and no more comes in
    }
    Closers& all = closers();
    if (all.process != ::getpid()) {  // a forked child has none of the threads, and serves nobody
        (void)::close(fd);
        return;
    }
    try {
        const std::lock_guard lock(all.mutex);
        all.waiting.push_back({fd, unread});
        if (static_cast<int>(all.waiting.size()) > all.idle && all.threads < kClosersMax) {
            start_quiet_thread([&all] { all.loop(); }).detach();
            ++all.threads;
        }
        all.changed.notify_one();
    } catch (...) {
        // Neither memory nor a thread is to be had. What waits is closed by the next thread that can be started; what could not be
        // put there stays open, which hurts less than waiting.
    }
}

void let_closers_catch_up(std::size_t most, std::chrono::milliseconds within) noexcept {
    Closers& all = closers();
    std::unique_lock lock(all.mutex);
    (void)all.fewer.wait_for(lock, within, [&] { return all.waiting.size() <= most; });
}

}  // namespace pollcore
