// An order gateway in open loop: each order is due at its time, whether or not earlier orders were answered. The
// gateway sends to two exchanges. The second exchange halts: it takes no orders until the first exchange is far ahead.
// Flow control then holds back the orders to the second exchange. None is lost, and the orders to the first exchange go
// on.
//
//   order_gateway CONFIG [ORDERS [RATE]]        for example: order_gateway config/loopback.toml 20000 100000
//
// Each exchange gets ORDERS orders, RATE a second. The time of an order begins when the order is due. So this time
// includes the time for which the order was held back.
//
// One thread serves gateway and exchanges in turn. Two CPUs are therefore enough: one for this thread and one for the
// worker. On one CPU the thread and the worker take turns, and the times mean little.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "example.hpp"

using namespace pollcore;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLate{1};  // an order that takes longer from due to answered is counted
constexpr std::chrono::seconds kPatience{30};
constexpr std::uint64_t kMost = 100'000'000;  // orders, and orders a second

struct Order {
    std::uint64_t id;
    std::uint32_t price;
    std::uint32_t quantity;
};
struct Answer {
    std::uint64_t id;
    std::uint32_t price;
    std::uint32_t filled;
};
static_assert(sizeof(Order) == sizeof(Answer));

// One end of a connection. By the credits, no end sends more than the other end has room for.
class End {
public:
    explicit End(Runtime& runtime)
        : session_(runtime.open_session({.pool_buffers = 2 * kReceives})),
          pool_(runtime.create_receive_pool(
              {.session = &session_, .buffers = 2 * kReceives, .buffer_bytes = sizeof(Order)})),
          qp_(runtime.create_queue_pair({.shares = {{.session = &session_}},
                                         .recv_depth = kReceives,
                                         .pool = &pool_,
                                         .inline_max = sizeof(Order),
                                         .flow = FlowControl::credits})) {}

    QueuePair& qp() { return qp_; }

    // Returns false if there is no room now. The payload is copied into the request, so `message` need not stay.
    template <class Message>
    [[nodiscard]] bool send(const Message& message) {
        // Unsignaled, so the only completions are messages and failures.
        const Refusal refusal = session_.try_submit_inline(WorkRequest::send(qp_.handle(), {}).unsignaled(),
                                                           std::as_bytes(std::span(&message, 1)));
        if (retryable(refusal)) {
            return false;
        }
        example::accepted(refusal);
        return true;
    }

    // The next message, if one has come.
    template <class Message>
    [[nodiscard]] std::optional<Message> receive() {
        Completion completion;
        if (session_.poll({&completion, 1}) == 0) {
            return std::nullopt;
        }
        example::succeeded(completion);
        if (completion.byte_len != sizeof(Message)) {
            throw std::runtime_error(fmt::format("a message of {} bytes came", completion.byte_len));
        }
        Message message;
        std::memcpy(&message, pool_.message(completion).data(), sizeof message);
        example::accepted(session_.release(completion));
        return message;
    }

private:
    static constexpr std::uint32_t kReceives = 32;

    Session session_;
    ReceivePool pool_;
    QueuePair qp_;
};

class Exchange : public End {
public:
    using End::End;

    [[nodiscard]] std::uint64_t answered() const { return answered_; }

    // Answers the orders that have come. Takes no further order while there is no room for an answer.
    void turn() {
        while (answer_ || take()) {
            if (!send(*answer_)) {
                return;
            }
            answer_.reset();
            ++answered_;
        }
    }

private:
    [[nodiscard]] bool take() {
        if (const std::optional<Order> order = receive<Order>()) {
            answer_ = Answer{.id = order->id, .price = order->price, .filled = order->quantity};
        }
        return answer_.has_value();
    }

    std::optional<Answer> answer_;  // not sent yet
    std::uint64_t answered_ = 0;
};

// The gateway's end of the connection to one exchange.
class Line : public End {
public:
    Line(Runtime& runtime, std::uint64_t orders, std::uint64_t rate)
        : End(runtime), orders_(orders), interval_(std::chrono::nanoseconds(std::chrono::seconds(1)) / rate) {
        times_.reserve(orders);
    }

    [[nodiscard]] std::uint64_t answered() const { return times_.size(); }

    // Sends the orders that are due, as far as there is room, and takes the answers that have come. The first order is
    // due at `begin`.
    void turn(Clock::time_point begin) {
        const auto due = std::min(orders_, static_cast<std::uint64_t>((Clock::now() - begin) / interval_) + 1);
        while (sent_ < due && send(Order{.id = sent_, .price = 100, .quantity = quantity(sent_)})) {
            ++sent_;
        }
        if (sent_ < due) {
            held_back_ += due - std::max(sent_, counted_);
            most_at_a_time_ = std::max(most_at_a_time_, due - sent_);
            counted_ = due;
        }
        while (const std::optional<Answer> answer = receive<Answer>()) {
            if (answer->id != answered() || answer->filled != quantity(answer->id)) {
                throw std::runtime_error(fmt::format("the answer to order {} is to order {}, with {} pieces",
                                                     answered(), answer->id, answer->filled));
            }
            times_.push_back(Clock::now() - (begin + answer->id * interval_));
        }
    }

    void report() {
        const auto late = std::count_if(times_.begin(), times_.end(), [](auto time) { return time > kLate; });
        std::sort(times_.begin(), times_.end());
        fmt::print(
            "{} orders, each answered once and in order; {} held back, at most {} at a time; {} late by {} ms\n"
            "  from due to answered: median {} ns, 99% {} ns, worst {} ns\n",
            orders_, held_back_, most_at_a_time_, late, kLate.count(), times_[times_.size() / 2].count(),
            times_[times_.size() * 99 / 100].count(), times_.back().count());
    }

private:
    static std::uint32_t quantity(std::uint64_t id) { return static_cast<std::uint32_t>(id % 7); }

    std::uint64_t orders_;
    std::chrono::nanoseconds interval_;
    std::uint64_t sent_ = 0;
    std::uint64_t held_back_ = 0;
    std::uint64_t counted_ = 0;  // all orders before this one were sent when they were due, or are in held_back_
    std::uint64_t most_at_a_time_ = 0;
    std::vector<std::chrono::nanoseconds> times_;
};

void trade(const char* config, std::uint64_t orders, std::uint64_t rate) {
    Runtime runtime(load_config(config));
    std::array<Exchange, 2> exchanges{Exchange(runtime), Exchange(runtime)};
    std::array<Line, 2> gateway{Line(runtime, orders, rate), Line(runtime, orders, rate)};
    for (std::size_t i = 0; i < 2; ++i) {
        example::connect(gateway[i].qp(), exchanges[i].qp());
    }

    const Clock::time_point begin = Clock::now();
    const Clock::time_point end = begin + kPatience + orders * std::chrono::seconds(1) / rate;
    while (gateway[0].answered() < orders || gateway[1].answered() < orders) {
        for (Line& line : gateway) {
            line.turn(begin);
        }
        exchanges[0].turn();
        const bool halted = exchanges[1].answered() >= orders / 4 && exchanges[0].answered() < orders / 2;
        if (!halted) {
            exchanges[1].turn();
        }
        if (Clock::now() > end) {
            throw std::runtime_error(fmt::format("of {} orders, the exchanges have answered only {} and {}", orders,
                                                 gateway[0].answered(), gateway[1].answered()));
        }
        std::this_thread::yield();
    }
    fmt::print("exchange 1: ");
    gateway[0].report();
    fmt::print("exchange 2, which halted: ");
    gateway[1].report();
    for (std::size_t worker = 0; worker < runtime.worker_count(); ++worker) {
        fmt::print("worker {}: {} messages waited until their receiver had room\n", worker,
                   runtime.worker_counters(worker).waits_for_credit.value());
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 4) {
        fmt::print(stderr, "usage: order_gateway CONFIG [ORDERS [RATE]]\n");
        return 2;
    }
    return example::run([&] {
        trade(argv[1], argc > 2 ? example::number(argv[2], 1, kMost) : 20'000,
              argc > 3 ? example::number(argv[3], 1, kMost) : 100'000);
    });
}
