// Runs the hot path for an instruction counter, ROUNDS times: most loads are bursts through submit, step and poll. See
// instruction_guard.py.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "message_load.hpp"
#include "neighbours.hpp"
#include "provider_load.hpp"
#include "send_pool_load.hpp"
#include "stepped_load.hpp"

namespace pollcore::bench {
namespace {

constexpr const char* kUsage =
    "usage: instruction-load ROUNDS BURST writes QPS SESSIONS CQS\n"
    "       instruction-load ROUNDS BURST invalidations\n"
    "       instruction-load ROUNDS BURST inline BYTES\n"
    "       instruction-load ROUNDS BURST send-pool\n"
    "       instruction-load ROUNDS BURST messages off|credits|ring WAITING\n"
    "       instruction-load ROUNDS BURST beside MANNERS\n"
    "       instruction-load ROUNDS 1 idle SESSIONS CQS\n"
    "       instruction-load ROUNDS BURST asleep\n"
    "       instruction-load ROUNDS BURST provider DEVICE plain|extended\n"
    "       instruction-load ROUNDS BURST writes-on DEVICE QPS each|coalesced\n";

/// Calls `then` at the end of each round.
template <class Load, class Then>
int run(std::uint32_t rounds, Load&& load, Then then) {
    for (std::uint32_t i = 0; i < rounds; ++i) {
        load.prepare();
        load.submit();
        load.step();
        load.poll();
        load.check();
        then(load);
    }
    return 0;
}
template <class Load>
int run(std::uint32_t rounds, Load&& load) {
    return run(rounds, load, [](const Load&) {});
}

int run(int argc, char** argv) {
    const auto word = [&](int i) { return std::string(i < argc ? argv[i] : ""); };
    const auto number = [&](int i) { return static_cast<std::uint32_t>(std::strtoul(word(i).c_str(), nullptr, 10)); };
    const std::uint32_t rounds = number(1);
    const std::uint32_t burst = number(2);
    if (argc == 7 && word(3) == "writes") {
        return run(rounds, SteppedLoad({.burst = burst, .qps = number(4), .sessions = number(5), .cqs = number(6)}));
    }
    if (argc == 4 && word(3) == "invalidations") {
        return run(rounds, SteppedLoad({.burst = burst, .invalidates = true}));
    }
    if (argc == 5 && word(3) == "inline") {
        return run(rounds, SteppedLoad({.burst = burst, .inline_bytes = number(4)}));
    }
    if (argc == 4 && word(3) == "send-pool") {
        return run(rounds, SendPoolLoad(burst));
    }
    if (argc == 6 && word(3) == "messages") {
        const FlowControl flow = flow_control_named(word(4)).value_or(FlowControl::off);
        return run(rounds, MessageLoad({.burst = burst, .flow = flow, .waiting = number(5)}));
    }
    if (argc == 5 && word(3) == "beside") {
        return run(rounds, NeighbourLoad(word(4), burst));
    }
    if (argc == 6 && word(3) == "idle") {
        SteppedLoad load({.burst = burst, .sessions = number(4), .cqs = number(5)});
        for (std::uint32_t i = 0; i < rounds; ++i) {
            load.look();
        }
        return 0;
    }
    if (argc == 4 && word(3) == "asleep") {
        return run(rounds, SteppedLoad({.burst = burst, .software = true, .sleeps = true}),
                   [](SteppedLoad& load) { load.sleep(); });
    }
    if (argc == 6 && burst <= kBurst && word(3) == "provider") {
        BareLoad load(std::make_shared<Provider>(word(4)), {.domain = true, .extended = word(5) == "extended"},
                      {.burst = burst});
        for (std::uint32_t i = 0; i < rounds; ++i) {
            load.prepare();
            load.post();
            load.settle();
            load.poll();
        }
        return 0;
    }
    if (argc == 7 && word(3) == "writes-on") {
        return run(rounds,
                   SteppedLoad({.burst = burst,
                                .qps = number(5),
                                .coalesce_signals = word(6) == "coalesced",
                                .provider = std::make_shared<Provider>(word(4))}),
                   [](const SteppedLoad& load) { load.settle(); });
    }
    std::cerr << kUsage;
    return 2;
}

}  // namespace
}  // namespace pollcore::bench

int main(int argc, char** argv) {
    try {
        return pollcore::bench::run(argc, argv);
    } catch (const std::exception& error) {
        std::cerr << "instruction-load: " << error.what() << '\n';
        return 1;
    }
}
