// An order gateway: a trader sends orders of a fixed size, and the gateway answers each order. The program compares
// every round trip with a time budget.
//
//   order_gateway CONFIG [ORDERS [BUDGET_NS]]        for example: order_gateway config/loopback.toml 100000 5000
//
// One thread serves both sessions, trader and gateway, in turn. Two CPUs are therefore enough: one for this thread and
// one for the worker. On one CPU the thread and the worker take turns, and the times mean little.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "example.hpp"

using namespace pollcore;

namespace {

struct Order {
    std::uint64_t id;
    std::uint64_t sent_ns;
    std::uint32_t price;
    std::uint32_t quantity;
};
struct Answer {
    std::uint64_t id;
    std::uint64_t sent_ns;
    std::uint32_t filled;
    std::uint32_t accepted;
};
static_assert(sizeof(Order) == sizeof(Answer));

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
}

// One end: a queue pair, and one buffer for each posted receive.
class End {
public:
    End(Runtime& runtime, Session& session)
        : session_(session),
          memory_(runtime.allocate(kReceives * kBuffer, Access::local())),
          qp_(runtime.create_queue_pair(
              {.shares = {{.session = &session}}, .recv_depth = kReceives, .inline_max = sizeof(Order)})) {
        for (std::uint64_t slot = 0; slot < kReceives; ++slot) {
            post_receive(slot);
        }
    }

    QueuePair& qp() { return qp_; }

    template <class Message>
    void send(const Message& message) {
        // The payload is copied into the request, so `message` need not stay, nor be in registered memory.
        example::accepted(
            session_.try_submit_inline(WorkRequest::send(qp_.handle(), {}), std::as_bytes(std::span(&message, 1))));
    }

    // The next message. Skips the completions of this end's own sends.
    template <class Message>
    Message receive() {
        for (;;) {
            const Completion completion = example::next_completion(session_);
            if (!completion.from_recv_queue()) {
                continue;
            }
            if (completion.byte_len != sizeof(Message)) {
                throw std::runtime_error(fmt::format("a message of {} bytes came", completion.byte_len));
            }
            Message message;
            std::memcpy(&message, memory_.data() + completion.tag * kBuffer, sizeof message);
            post_receive(completion.tag);
            return message;
        }
    }

private:
    static constexpr std::size_t kBuffer = 64;
    static constexpr std::uint32_t kReceives = 16;

    void post_receive(std::uint64_t slot) {
        const Sge buffer = memory_.sge(slot * kBuffer, kBuffer);
        example::submit(session_, WorkRequest::recv(qp_.handle(), buffer).with_tag(slot));
    }

    Session& session_;
    MemoryRegion memory_;
    QueuePair qp_;
};

std::uint64_t number(const char* text, std::uint64_t least) {
    std::uint64_t value = 0;
    const std::string_view all(text);
    const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
    if (error != std::errc() || end != all.data() + all.size() || value < least) {
        throw std::runtime_error(fmt::format("\"{}\" is not accepted: a number from {} on is", text, least));
    }
    return value;
}

void print_histogram(const std::vector<std::uint64_t>& latencies) {
    std::array<std::size_t, 64> buckets{};  // by power of two
    for (const std::uint64_t latency : latencies) {
        ++buckets[static_cast<std::size_t>(std::bit_width(latency))];
    }
    const std::size_t most = *std::max_element(buckets.begin(), buckets.end());
    for (std::size_t i = 1; i < buckets.size(); ++i) {
        if (buckets[i] != 0) {
            fmt::print("  from {:>9} ns {:>9}  {:#<{}}\n", std::uint64_t{1} << (i - 1), buckets[i], "#",
                       1 + 50 * buckets[i] / most);
        }
    }
}

void trade(const char* config, std::uint64_t orders, std::uint64_t budget_ns) {
    Runtime runtime(load_config(config));
    Session traders = runtime.open_session();
    Session gateways = runtime.open_session({.worker = runtime.config().workers.front().name});
    End trader(runtime, traders);
    End gateway(runtime, gateways);
    example::connect(trader.qp(), gateway.qp());

    std::vector<std::uint64_t> latencies;
    latencies.reserve(orders);
    std::uint64_t filled = 0;
    for (std::uint64_t id = 1; id <= orders; ++id) {
        trader.send(Order{.id = id, .sent_ns = now_ns(), .price = 100, .quantity = static_cast<std::uint32_t>(id % 7)});

        const auto order = gateway.receive<Order>();
        gateway.send(Answer{.id = order.id, .sent_ns = order.sent_ns, .filled = order.quantity, .accepted = 1});

        const auto answer = trader.receive<Answer>();
        if (answer.id != id) {
            throw std::runtime_error(fmt::format("the answer to order {} came for order {}", answer.id, id));
        }
        latencies.push_back(now_ns() - answer.sent_ns);
        filled += answer.filled;
    }

    const auto late =
        std::count_if(latencies.begin(), latencies.end(), [&](auto latency) { return latency > budget_ns; });
    fmt::print("{} orders, {} pieces filled, order to answer:\n", orders, filled);
    print_histogram(latencies);
    std::sort(latencies.begin(), latencies.end());
    fmt::print("median {} ns, 99% {} ns, worst {} ns; {} over the budget of {} ns\n", latencies[latencies.size() / 2],
               latencies[latencies.size() * 99 / 100], latencies.back(), late, budget_ns);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 4) {
        fmt::print(stderr, "usage: order_gateway CONFIG [ORDERS [BUDGET_NS]]\n");
        return 2;
    }
    return example::run(
        [&] { trade(argv[1], argc > 2 ? number(argv[2], 1) : 100'000, argc > 3 ? number(argv[3], 1) : 10'000); });
}
