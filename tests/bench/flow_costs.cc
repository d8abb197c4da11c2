// What flow control costs a message: from one queue pair to the pool or the write ring of another, by an application on one CPU and a
// worker on the other, on the software device.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>

#include "base/clock.hpp"
#include "bench.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint32_t kBytes = 64;
constexpr std::uint32_t kOnTheirWay = 64;
constexpr std::uint32_t kReceives = 256;  // enough: no message meets none, whatever flow control there is
constexpr int kTurns = 5;                 // of each, in turn

/// From one queue pair to another, both of this thread.
class Line {
public:
    Line(Runtime& runtime, FlowControl flow)
        : session_(runtime.open_session({.pool_buffers = 2 * kReceives})),
          pool_(flow == FlowControl::ring ? runtime.create_write_ring({.session = &session_, .bytes = 64 * 1024, .messages = kReceives})
                                          : runtime.create_receive_pool({.session = &session_, .buffers = 2 * kReceives, .buffer_bytes = kBytes})),
          memory_(runtime.allocate(std::size_t{kOnTheirWay} * kBytes)),
          from_(runtime.create_queue_pair({.shares = {{.session = &session_, .send_depth = kOnTheirWay}}, .recv_depth = 8, .flow = flow})),
          to_(runtime.create_queue_pair({.shares = {{.session = &session_}}, .recv_depth = kReceives, .pool = &pool_, .flow = flow})) {
        const QpInfo info = from_.info();
        from_.connect(to_.info());
        to_.connect(info);
    }

    [[nodiscard]] Session& session() { return session_; }

    /// Messages per second with as many on their way as there may be.
    [[nodiscard]] double rate(std::chrono::nanoseconds time) {
        return per_second(time, [this] {
            send(kOnTheirWay / 2);
            read();
        });
    }
    /// One at a time: from being submitted until being read, in ns.
    [[nodiscard]] double latency(std::chrono::nanoseconds time) {
        return 1e9 / per_second(time, [this] {
            send(1);
            for (const std::uint64_t before = read_; read_ == before;) {
                read();
            }
        });
    }

private:
    template <class Turn>
    double per_second(std::chrono::nanoseconds time, Turn turn) {
        const std::uint64_t first = read_;
        const std::uint64_t began = cycles_now();
        std::uint64_t now = began;
        for (const std::uint64_t until = began + cycles_from(time); now < until || read_ == first; now = cycles_now()) {
            turn();
        }
        const double messages = static_cast<double>(read_ - first);
        while (read_ < sent_) {
            read();
        }
        return messages / (static_cast<double>(now - began) / cycles_per_ns() / 1e9);
    }
    /// What there is room for: those on their way are not read yet.
    void send(std::uint64_t most) {
        while (sent_ - read_ < most) {
            const std::uint64_t at = sent_ % kOnTheirWay * kBytes;
            std::memcpy(memory_.data() + at, &sent_, sizeof sent_);
            std::memset(memory_.data() + at + sizeof sent_, static_cast<int>(sent_ & 0xff), kBytes - sizeof sent_);
            // A signal for every 16th: the others are retired with it.
            const std::uint8_t flags = sent_ % 16 == 15 ? kSignaled : 0;
            const Refusal refusal = session_.try_submit({.tag = sent_,
                                                         .sge = {memory_.addr() + at, kBytes, memory_.lkey()},
                                                         .qp = from_.handle(),
                                                         .opcode = Opcode::send,
                                                         .flags = flags,
                                                         .num_sge = 1});
            if (refusal == Refusal::send_queue_full) {
                return;  // they were read, and their requests have not been retired yet
            }
            if (refusal != Refusal::none) {
                throw std::runtime_error("a message was refused");
            }
            ++sent_;
        }
    }
    void read() {
        Completion some[32];
        const std::size_t n = session_.poll(some);
        const std::uint64_t before = read_;
        for (std::size_t i = 0; i < n; ++i) {
            if (some[i].ok() && some[i].pooled()) {
                std::uint64_t number = 0;
                std::memcpy(&number, pool_.message(some[i]).data(), sizeof number);
                if (number != read_++) {
                    throw std::runtime_error("another message came than was sent");
                }
            } else if (!some[i].ok()) {
                throw std::runtime_error("a message failed");
            }
        }
        if (read_ != before && session_.release(std::span(some).first(n)).refusal != Refusal::none) {
            throw std::runtime_error("buffers cannot be given back");
        }
    }

    Session session_;
    ReceivePool pool_;
    MemoryRegion memory_;
    QueuePair from_;
    QueuePair to_;
    std::uint64_t sent_ = 0;
    std::uint64_t read_ = 0;
};

/// A queue pair of the session whose requests wait: nobody gives it a receive.
class Waiting {
public:
    static constexpr std::uint64_t kRequests = 60;

    Waiting(Runtime& runtime, Session& session)
        : peers_(runtime.open_session()),
          memory_(runtime.allocate(kBytes)),
          from_(runtime.create_queue_pair({.shares = {{.session = &session, .send_depth = 64}}, .recv_depth = 8, .flow = FlowControl::credits})),
          to_(runtime.create_queue_pair({.shares = {{.session = &peers_}}, .recv_depth = 8, .flow = FlowControl::credits})) {
        const QpInfo info = from_.info();
        from_.connect(to_.info());
        to_.connect(info);
        for (std::uint64_t i = 0; i < kRequests; ++i) {
            const WorkRequest request{.sge = {memory_.addr(), kBytes, memory_.lkey()},
                                      .qp = from_.handle(),
                                      .opcode = Opcode::send,
                                      .num_sge = 1};
            if (session.try_submit(request) != Refusal::none) {
                throw std::runtime_error("a request that is to wait was refused");
            }
        }
    }
    /// Its requests end with it.
    void end(Session& session) {
        if (session.figures().in_flight() < kRequests) {
            throw std::runtime_error("nothing waits");
        }
        (void)from_.reset();
        Completion some[64];
        std::uint64_t flushed = 0;
        while (const std::size_t n = session.poll(some)) {
            flushed += static_cast<std::uint64_t>(std::count_if(some, some + n, [](const Completion& one) { return one.status == Status::wr_flush_err; }));
        }
        if (flushed != kRequests) {
            throw std::runtime_error("what waits was not flushed");
        }
    }

private:
    Session peers_;
    MemoryRegion memory_;
    QueuePair from_;
    QueuePair to_;
};

std::vector<double> turns(const Setting& setting) {
    Config config;
    config.devices.push_back({.name = "d"});
    config.workers.push_back({.name = "w", .core = setting.cpus.there, .idle = IdlePolicy::spin});
    config.log_level = LogLevel::error;
    Runtime runtime(config);
    Line off(runtime, FlowControl::off);
    Line credits(runtime, FlowControl::credits);
    Line ring(runtime, FlowControl::ring);
    std::array<std::vector<double>, 6> all;
    const auto time = setting.time / kTurns;
    for (int i = -1; i < kTurns; ++i) {  // the first is no measurement
        std::array<double, 6> turn{off.rate(time) / 1e6, credits.rate(time) / 1e6, 0, off.latency(time), credits.latency(time), ring.latency(time)};
        Waiting waiting(runtime, credits.session());
        turn[2] = credits.rate(time) / 1e6;
        waiting.end(credits.session());
        for (std::size_t column = 0; i >= 0 && column < turn.size(); ++column) {
            all[column].push_back(turn[column]);
        }
    }
    if (runtime.rnr_counts().value().received != 0) {
        throw std::runtime_error("a message met no receive");
    }
    std::vector<double> medians;
    for (const std::vector<double>& column : all) {
        medians.push_back(median(column));
    }
    return medians;
}

}  // namespace

std::vector<Measurement> flow_costs(const Setting& setting) {
    return {{.table = "64-byte messages to a receive pool or a write ring, through a worker on another CPU, software device",
             .row = "pollcore",
             .columns = {"M/s, no flow control", "M/s, credits", "M/s, credits, beside 60 requests that wait", "ns, no flow control",
                         "ns, credits", "ns, write ring"},
             .once = [setting] { return turns(setting); }}};
}

}  // namespace pollcore::bench
