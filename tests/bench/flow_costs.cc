// The cost of flow control for a message from one queue pair to the receive pool or the write ring of another. The
// application runs on one CPU, the worker on the other. The device is the software device.
#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>

#include "base/clock.hpp"
#include "bench.hpp"
#include "message_line.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint32_t kBytes = 64;
constexpr std::uint32_t kReceives = 256;  // enough receives for every message, with any flow control
constexpr int kTurns = 5;                 // repetitions of each measurement; the measurements take turns

/// Sends messages with one kind of flow control, and measures their rate and latency.
class Line {
public:
    Line(Runtime& runtime, FlowControl flow) : messages_(runtime, flow, kReceives) {}

    [[nodiscard]] Session& session() { return messages_.session(); }

    /// Returns messages per second, with many messages in flight.
    [[nodiscard]] double rate(std::chrono::nanoseconds time) {
        return per_second(time, [this] {
            messages_.send(test::MessageLine::kOnTheirWay / 2);
            receive();
        });
    }
    /// Returns the time from submitting a message until it is read, in ns, with one message at a time.
    [[nodiscard]] double latency(std::chrono::nanoseconds time) {
        return 1e9 / per_second(time, [this] {
                   messages_.send(1);
                   for (const std::uint64_t before = messages_.received(); messages_.received() == before;) {
                       receive();
                   }
               });
    }

private:
    template <class Turn>
    double per_second(std::chrono::nanoseconds time, Turn turn) {
        const std::uint64_t first = messages_.received();
        const std::uint64_t began = cycles_now();
        std::uint64_t now = began;
        for (const std::uint64_t until = began + cycles_from(time); now < until || messages_.received() == first;
             now = cycles_now()) {
            turn();
        }
        const double received = static_cast<double>(messages_.received() - first);
        while (messages_.received() < messages_.sent()) {
            receive();
        }
        return received / (static_cast<double>(now - began) / cycles_per_ns() / 1e9);
    }
    void receive() {
        messages_.receive(32, [](std::uint64_t, std::span<const std::byte>) {});
    }

    test::MessageLine messages_;
};

/// A queue pair of the session. Its requests wait for credit, because the peer posts no receive.
class Waiting {
public:
    static constexpr std::uint64_t kRequests = 60;

    Waiting(Runtime& runtime, Session& session)
        : peers_(runtime.open_session()),
          memory_(runtime.allocate(kBytes, Access::all())),
          from_(runtime.create_queue_pair(
              {.shares = {{.session = &session, .send_depth = 64}}, .recv_depth = 8, .flow = FlowControl::credits})),
          to_(runtime.create_queue_pair(
              {.shares = {{.session = &peers_}}, .recv_depth = 8, .flow = FlowControl::credits})) {
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
    /// Resets the queue pair, which flushes its requests.
    void end(Session& session) {
        if (session.figures().in_flight() < kRequests) {
            throw std::runtime_error("nothing waits");
        }
        (void)from_.reset();
        Completion some[64];
        std::uint64_t flushed = 0;
        while (const std::size_t n = session.poll(some)) {
            flushed += static_cast<std::uint64_t>(std::count_if(
                some, some + n, [](const Completion& one) { return one.status == Status::wr_flush_err; }));
        }
        if (flushed != kRequests) {
            throw std::runtime_error("the waiting requests were not flushed");
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
    for (int i = -1; i < kTurns; ++i) {  // the first turn only warms up
        std::array<double, 6> turn{off.rate(time) / 1e6, credits.rate(time) / 1e6, 0,
                                   off.latency(time),    credits.latency(time),    ring.latency(time)};
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
    return {{.table =
                 "64-byte messages to a receive pool or a write ring, through a worker on another CPU, software device",
             .row = "pollcore",
             .columns = {"M/s, no flow control", "M/s, credits", "M/s, credits, beside 60 requests that wait",
                         "ns, no flow control", "ns, credits", "ns, write ring"},
             .once = [setting] { return turns(setting); },
             .between_cpus = true}};
}

}  // namespace pollcore::bench
