// What two pollperfs say to each other: the letters, the channel that carries them, and what a peer that is no pollperf
// says. A peer may be hostile.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/service_wire.hpp"
#include "pollcore/error.hpp"
#include "pollperf/peer/control_channel.hpp"
#include "pollperf/peer/letters.hpp"
#include "pollperf/peer/service_peer.hpp"

namespace pollcore::perf {
namespace {

using Letter = nlohmann::json;
using Milliseconds = std::chrono::milliseconds;

// ---- letters: round trips ----

// No two members are equal, so that none can take another one's place.
ConnectionPlan some_plan() {
    return {.transport = QpType::uc,
            .size = 65536,
            .slots = 3,
            .receive_slots = 96,
            .send_depth = 128,
            .post_list = 16,
            .threads = 4,
            .connections = 8,
            .sessions = 2,
            .mtu = 4096,
            .flow = FlowControl::off,
            .rdma_cm = true};
}
EndInfo some_end(std::uint32_t number) {
    EndInfo end;
    for (std::size_t i = 0; i < end.qp.gid.size(); ++i) {
        end.qp.gid[i] = static_cast<std::uint8_t>(250 + i);
    }
    end.qp.qp_num = 0xffffff - number;
    end.qp.psn = 0xfffffffe - number;
    end.qp.lid = 0xfffd;
    end.qp.mtu = 1024;
    end.qp.type = QpType::ud;
    end.qp.flow.kind = kFlowControls[1];
    end.qp.flow.addr = 0xfffffffffffffffc;
    end.qp.flow.rkey = 0xfffffffb;
    end.memory.addr = 0xfffffffffffffffa - number;
    end.memory.rkey = 0xfffffff9;
    return end;
}
Workload some_workload() {
    return {.test = perf::Test::rate,
            .op = Op::write_imm,
            .transport = QpType::uc,
            .size = 4097,
            .verify = true,
            .one_sided = true,
            .bidirectional = true,
            .tx_depth = 100,
            .post_list = 7,
            .signal_every = 31};
}
HostFacts some_host() {
    HostFacts host;
    host.name = "a";
    host.machine = {.cpu_model = "b", .cpus_online = 12, .kernel = "c"};
    host.governor = "d";
    host.hypervisor = "e";
    host.isolated_cpus = "1-3";
    host.clock = "tsc";
    return host;
}

TEST(PollperfLetters, AConnectionPlanArrivesAsItWasSent) {
    const ConnectionPlan sent = some_plan();
    const ConnectionPlan plan = read_connection_plan(to_json(sent));
    EXPECT_EQ(plan.transport, sent.transport);
    EXPECT_EQ(plan.size, sent.size);
    EXPECT_EQ(plan.slots, sent.slots);
    EXPECT_EQ(plan.receive_slots, sent.receive_slots);
    EXPECT_EQ(plan.send_depth, sent.send_depth);
    EXPECT_EQ(plan.post_list, sent.post_list);
    EXPECT_EQ(plan.threads, sent.threads);
    EXPECT_EQ(plan.connections, sent.connections);
    EXPECT_EQ(plan.sessions, sent.sessions);
    EXPECT_EQ(plan.mtu, sent.mtu);
    EXPECT_EQ(plan.rdma_cm, sent.rdma_cm);
    for (const FlowControl flow : kFlowControls) {
        ConnectionPlan with_flow = sent;
        with_flow.flow = flow;
        EXPECT_EQ(read_connection_plan(to_json(with_flow)).flow, flow);
    }
    for (const QpType transport : {QpType::rc, QpType::uc, QpType::ud}) {
        ConnectionPlan with_transport = sent;
        with_transport.transport = transport;
        EXPECT_EQ(read_connection_plan(to_json(with_transport)).transport, transport);
    }
}

TEST(PollperfLetters, APlanOfTwoSidesHasTwiceTheEnds) {
    const PathSetup one = some_plan().setup(1);
    const PathSetup two = some_plan().setup(2);
    EXPECT_EQ(one.ends, 8u);
    EXPECT_EQ(two.ends, 16u);
    EXPECT_EQ(one.layout.size, 65536u);
    EXPECT_EQ(one.layout.out_slots, 3u);
    EXPECT_EQ(one.layout.in_slots, 3u);
    EXPECT_EQ(one.layout.receive_slots, 96u);
    EXPECT_EQ(one.send_depth, 128u);
    EXPECT_EQ(one.post_list, 16u);
    EXPECT_EQ(one.mtu, 4096u);
    EXPECT_EQ(one.sessions, 2u);
    EXPECT_EQ(one.transport, QpType::uc);
}

TEST(PollperfLetters, EndsArriveAsTheyWereSent) {
    const std::vector<EndInfo> sent = {some_end(0), some_end(1)};
    const std::vector<EndInfo> ends = read_ends(to_json(sent), 2);
    ASSERT_EQ(ends.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(ends[i].qp.gid, sent[i].qp.gid);
        EXPECT_EQ(ends[i].qp.qp_num, sent[i].qp.qp_num);
        EXPECT_EQ(ends[i].qp.psn, sent[i].qp.psn);
        EXPECT_EQ(ends[i].qp.lid, sent[i].qp.lid);
        EXPECT_EQ(ends[i].qp.mtu, sent[i].qp.mtu);
        EXPECT_EQ(ends[i].qp.type, sent[i].qp.type);
        EXPECT_EQ(ends[i].qp.flow.kind, sent[i].qp.flow.kind);
        EXPECT_EQ(ends[i].qp.flow.addr, sent[i].qp.flow.addr);
        EXPECT_EQ(ends[i].qp.flow.rkey, sent[i].qp.flow.rkey);
        EXPECT_EQ(ends[i].memory.addr, sent[i].memory.addr);
        EXPECT_EQ(ends[i].memory.rkey, sent[i].memory.rkey);
    }
    EXPECT_TRUE(read_ends(to_json(std::vector<EndInfo>()), 0).empty());
}

TEST(PollperfLetters, AWorkloadArrivesAsItWasSent) {
    const Workload sent = some_workload();
    const Workload workload = read_workload(to_json(sent), some_plan());
    EXPECT_EQ(workload.test, sent.test);
    EXPECT_EQ(workload.op, sent.op);
    EXPECT_EQ(workload.transport, QpType::uc);
    EXPECT_EQ(workload.size, sent.size);
    EXPECT_EQ(workload.tx_depth, sent.tx_depth);
    EXPECT_EQ(workload.post_list, sent.post_list);
    EXPECT_EQ(workload.signal_every, sent.signal_every);
    for (const int which : {0, 1, 2}) {
        Workload flags = sent;
        flags.verify = which == 0;
        flags.one_sided = which == 1;
        flags.bidirectional = which == 2;
        const Workload read = read_workload(to_json(flags), some_plan());
        EXPECT_EQ(read.verify, which == 0);
        EXPECT_EQ(read.one_sided, which == 1);
        EXPECT_EQ(read.bidirectional, which == 2);
    }
    ConnectionPlan reliable = some_plan();
    reliable.transport = QpType::rc;
    for (const Op op : kOps) {
        for (const perf::Test test : {perf::Test::lat, perf::Test::bw, perf::Test::rate}) {
            Workload other = sent;
            other.op = op;
            other.test = test;
            EXPECT_EQ(read_workload(to_json(other), reliable).op, op);
            EXPECT_EQ(read_workload(to_json(other), reliable).test, test);
        }
    }
}

TEST(PollperfLetters, AnEndOfAPartArrivesAsItWasSent) {
    const Until time = read_until(to_json(Until{.time = Milliseconds(1500)}));
    EXPECT_TRUE(time.by_time());
    EXPECT_EQ(time.time, Milliseconds(1500));
    const Until operations = read_until(to_json(Until{.operations = 12345}));
    EXPECT_FALSE(operations.by_time());
    EXPECT_EQ(operations.operations, 12345u);
}

TEST(PollperfLetters, AHostArrivesAsItWasSent) {
    const HostFacts host = read_host(to_json(some_host()));
    EXPECT_EQ(host.name, "a");
    EXPECT_EQ(host.machine.cpu_model, "b");
    EXPECT_EQ(host.machine.cpus_online, 12u);
    EXPECT_EQ(host.machine.kernel, "c");
    EXPECT_EQ(host.governor, "d");
    EXPECT_EQ(host.hypervisor, "e");
    EXPECT_EQ(host.isolated_cpus, "1-3");
    EXPECT_EQ(host.clock, "tsc");
}

TEST(PollperfLetters, APathArrivesAsItWasSent) {
    for (const PathKind path : {PathKind::direct, PathKind::event, PathKind::runtime, PathKind::attached}) {
        EXPECT_EQ(read_path({{"path", path_name(path)}}), path);
    }
}

// ---- letters: what is refused ----

struct Reader {
    const char* name;
    Letter valid;
    std::function<void(const Letter&)> read;
};
std::vector<Reader> readers() {
    return {
        {"plan", to_json(some_plan()), [](const Letter& json) { (void)read_connection_plan(json); }},
        {"ends", to_json(std::vector{some_end(0), some_end(1)}), [](const Letter& json) { (void)read_ends(json, 2); }},
        {"workload", to_json(some_workload()),
         [](const Letter& json) {
             const Workload workload = read_workload(json, some_plan());
             EXPECT_LE(workload.size, some_plan().size);
             EXPECT_LE(workload.tx_depth, some_plan().send_depth);
             EXPECT_LE(workload.post_list, some_plan().post_list);
             EXPECT_GE(workload.size, 1u);
             EXPECT_GE(workload.tx_depth, 1u);
             EXPECT_GE(workload.post_list, 1u);
             EXPECT_GE(workload.signal_every, 1u);
         }},
        {"time", to_json(Until{.time = Milliseconds(1500)}),
         [](const Letter& json) {
             const Until until = read_until(json);
             EXPECT_GT(until.time.count(), 0);
             EXPECT_GE(until.operations, 1u);
         }},
        {"operations", to_json(Until{.operations = 12345}), [](const Letter& json) { (void)read_until(json); }},
        {"host", to_json(some_host()),
         [](const Letter& json) {
             const HostFacts host = read_host(json);
             EXPECT_LE(host.name.size(), 400u);
         }},
        {"path", {{"path", "direct"}}, [](const Letter& json) { (void)read_path(json); }},
        {"bool", {{"yes", true}}, [](const Letter& json) { (void)read_bool(json, "yes"); }},
        {"counts", {{"counts", {1, 2, 3}}}, [](const Letter& json) { (void)read_counts(json, "counts", 3); }},
        {"number", {{"number", 7}}, [](const Letter& json) {
             EXPECT_LE(read_number<std::uint16_t>(json, "number", 1, 500), 500);
         }}};
}

// Numbers that a program gives to a letter may be of another type than those that it reads from a text.
Letter as_received(const Letter& json) {
    return Letter::parse(json.dump());
}

// Whether the reader refuses the letter. Fails if it throws anything but a MeasurementError.
bool refuses(const Reader& reader, const Letter& json) {
    const std::string text = json.dump();
    try {
        reader.read(Letter::parse(text));
        return false;
    } catch (const MeasurementError&) {
        return true;
    } catch (const std::exception& error) {
        ADD_FAILURE() << reader.name << ": " << error.what() << ": " << text.substr(0, 200);
        return true;
    }
}

const Letter& strange_values() {
    static const Letter values = {nullptr,
                                  true,
                                  0,
                                  -1,
                                  1,
                                  1.0,
                                  1.5,
                                  1e300,
                                  65536,
                                  std::numeric_limits<std::uint32_t>::max(),
                                  std::uint64_t{1} << 32,
                                  std::numeric_limits<std::uint64_t>::max(),
                                  std::numeric_limits<std::int64_t>::min(),
                                  "",
                                  "RC",
                                  "7",
                                  std::string(1000, 'x'),
                                  Letter::array(),
                                  Letter::object(),
                                  {1, 2, 3},
                                  {{"a", 1}},
                                  std::vector<int>(3000, 7)};
    return values;
}

// One of its members is missing, or is of another type.
TEST(PollperfLetters, WhatIsMissingOrOfTheWrongTypeIsRefused) {
    for (const Reader& reader : readers()) {
        EXPECT_FALSE(refuses(reader, reader.valid)) << reader.name;
        for (const Letter& value : strange_values()) {
            (void)refuses(reader, value);
        }
        for (const Letter& value : {Letter(), Letter(7), Letter("x"), Letter::array({1})}) {
            EXPECT_TRUE(refuses(reader, value)) << reader.name << ' ' << value;
        }
        const bool is_array = reader.valid.is_array();
        const Letter& members = is_array ? reader.valid[0] : reader.valid;
        for (const auto& [key, old] : members.items()) {
            const auto with = [&, name = key](const std::function<void(Letter&)>& change) {
                Letter changed = reader.valid;
                change(is_array ? changed[0] : changed);
                return refuses(reader, changed);
            };
            // The texts of a host are only shown.
            const bool needed = std::string_view(reader.name) != "host" || key == "cpus_online";
            EXPECT_EQ(with([name = key](Letter& json) { json.erase(name); }), needed) << reader.name << ": " << key;
            for (const Letter& value : strange_values()) {
                const bool refused = with([&, name = key](Letter& json) { json[name] = value; });
                if (needed && value.type() != old.type() && !(value.is_number() && old.is_number())) {
                    EXPECT_TRUE(refused) << reader.name << ": " << key << " is a " << value.type_name();
                }
                if (needed && old.is_number() && !value.is_number_unsigned() &&
                    !(value.is_number_integer() && value >= 0)) {
                    EXPECT_TRUE(refused) << reader.name << ": " << key << " is " << value;
                }
            }
        }
    }
}

bool refuses_plan(const std::function<void(ConnectionPlan&)>& change) {
    ConnectionPlan plan = some_plan();
    change(plan);
    return refuses(readers()[0], to_json(plan));
}

TEST(PollperfLetters, APlanBeyondTheLimitsIsRefused) {
    EXPECT_FALSE(refuses_plan([](ConnectionPlan& plan) { plan.mtu = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.size = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.slots = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.receive_slots = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.send_depth = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.send_depth = 65537; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.post_list = 129; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.threads = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.connections = 0; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.sessions = 9; }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) { plan.mtu = 4097; }));
    // Each of these alone is allowed.
    EXPECT_FALSE(refuses_plan([](ConnectionPlan& plan) {
        plan.threads = 1;
        plan.connections = 4096;
        plan.size = 64;
    }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) {
        plan.threads = 2;
        plan.connections = 4096;
        plan.size = 64;
    }));
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) {
        plan.slots = 65536;
        plan.size = 64u << 20;
    }));
    // Products of the greatest numbers do not become small ones.
    EXPECT_TRUE(refuses_plan([](ConnectionPlan& plan) {
        plan.threads = 256;
        plan.connections = 4096;
        plan.sessions = 1;
        plan.slots = 65536;
        plan.receive_slots = 65536;
        plan.size = 64u << 20;
    }));
}

bool refuses_workload(const std::function<void(Workload&)>& change) {
    Workload workload = some_workload();
    change(workload);
    return refuses(readers()[2], to_json(workload));
}

TEST(PollperfLetters, AWorkloadThatItsConnectionsCannotDoIsRefused) {
    EXPECT_FALSE(refuses_workload([](Workload& workload) { workload.size = 65536; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.size = 65537; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.size = 0; }));
    EXPECT_FALSE(refuses_workload([](Workload& workload) { workload.tx_depth = 128; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.tx_depth = 129; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.tx_depth = 0; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.post_list = 17; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.post_list = 0; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.signal_every = 0; }));
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.op = Op::read; }));  // the transport is UC
    EXPECT_TRUE(refuses_workload([](Workload& workload) { workload.op = Op::fetch_add; }));
    EXPECT_FALSE(refuses_workload([](Workload& workload) { workload.op = Op::write; }));
}

TEST(PollperfLetters, NumbersHaveTheirLimits) {
    const auto number = [](const Letter& value) {
        return read_number<std::uint16_t>(as_received({{"n", value}}), "n", 5, 60'000);
    };
    EXPECT_EQ(number(5), 5u);
    EXPECT_EQ(number(60'000), 60'000u);
    for (const Letter& value : {Letter(4), Letter(60'001), Letter(65'541), Letter(-5), Letter(5.0), Letter("5"),
                                Letter((std::uint64_t{1} << 32) + 5), Letter(std::uint64_t{0} - 5)}) {
        EXPECT_THROW((void)number(value), MeasurementError) << value;
    }
    EXPECT_EQ(read_until(as_received({{"ns", 1}})).time.count(), 1);
    EXPECT_THROW((void)read_until(as_received({{"ns", 0}})), MeasurementError);
    EXPECT_THROW((void)read_until(as_received({{"ns", std::numeric_limits<std::uint64_t>::max()}})), MeasurementError);
    EXPECT_EQ(read_until(as_received({{"operations", 1}})).operations, 1u);
    EXPECT_THROW((void)read_until(as_received({{"operations", 0}})), MeasurementError);
}

TEST(PollperfLetters, CountsAreAsManyAsThereAreEnds) {
    const auto counts = [](const Letter& value, std::size_t ends) {
        return read_counts(as_received({{"n", value}}), "n", ends);
    };
    const Letter three = {1u, 2u, std::numeric_limits<std::uint64_t>::max()};
    EXPECT_EQ(counts(three, 3), (std::vector<std::uint64_t>{1, 2, ~std::uint64_t{0}}));
    EXPECT_THROW((void)counts(three, 2), MeasurementError);
    EXPECT_THROW((void)counts(three, 4), MeasurementError);
    EXPECT_THROW((void)counts({1, -2, 3}, 3), MeasurementError);
    EXPECT_THROW((void)counts({1, "2", 3}, 3), MeasurementError);
    EXPECT_THROW((void)counts({1, 2.0, 3}, 3), MeasurementError);
    EXPECT_THROW((void)counts({{"a", 1}}, 1), MeasurementError);
    EXPECT_THROW((void)counts(std::vector<int>(100'000), 3), MeasurementError);
}

TEST(PollperfLetters, EndsWithAWrongGidAreRefused) {
    const auto with_gid = [](const Letter& gid) {
        Letter ends = to_json(std::vector{some_end(0)});
        ends[0]["gid"] = gid;
        return read_ends(as_received(ends), 1);
    };
    EXPECT_EQ(with_gid(std::vector<int>(16, 255))[0].qp.gid[15], 255);
    for (const Letter& gid :
         {Letter(std::vector<int>(15)), Letter(std::vector<int>(17)), Letter(std::vector<int>(16, 256)),
          Letter(std::vector<int>(16, -1)), Letter(std::vector<double>(16, 1.0)), Letter("gid")}) {
        EXPECT_THROW((void)with_gid(gid), MeasurementError) << gid;
    }
    EXPECT_THROW((void)read_ends(to_json(std::vector{some_end(0)}), 2), MeasurementError);
    EXPECT_THROW((void)read_ends(to_json(std::vector(1000, some_end(0))), 2), MeasurementError);
    EXPECT_THROW((void)read_ends(Letter::object(), 0), MeasurementError);
}

TEST(PollperfLetters, AHostsTextsAreShortAndHaveNoControlCharacters) {
    Letter host = to_json(some_host());
    host["name"] = "\x1b[2Ja\nb\tc";
    host["cpu"] = std::string(10'000, 'x');
    host["kernel"] = 7;
    const HostFacts read = read_host(host);
    EXPECT_EQ(read.name, "?[2Ja?b?c");
    EXPECT_EQ(read.machine.cpu_model.size(), 400u);
    EXPECT_EQ(read.machine.kernel, "");
}

// Changes one value somewhere in the letter.
void mutate(Letter& json, std::mt19937& random) {
    Letter* at = &json;
    while (at->is_structured() && !at->empty() && random() % 4 != 0) {
        auto next = at->begin();
        std::advance(next, random() % at->size());
        at = &*next;
    }
    switch (random() % 4) {
        case 0:
            if (at->is_object() && !at->empty()) {
                at->erase(at->begin());
                return;
            }
            break;
        case 1:
            if (at->is_array()) {
                at->push_back(strange_values()[random() % strange_values().size()]);
                return;
            }
            break;
        case 2:
            if (at->is_number_unsigned()) {
                *at = at->get<std::uint64_t>() << random() % 64;
                return;
            }
            break;
        default: break;
    }
    *at = strange_values()[random() % strange_values().size()];
}

TEST(PollperfLetters, ChangedLettersAreReadOrRefusedAndNothingElse) {
    constexpr std::string_view kCharacters = "0123456789-.e\"{}[],:tfn\\ \x7f";
    std::mt19937 random(20'261'129);
    for (const Reader& reader : readers()) {
        unsigned refused = 0;
        constexpr unsigned kTurns = 500;
        for (unsigned i = 0; i < kTurns && !testing::Test::HasFailure(); ++i) {
            Letter json = reader.valid;
            for (std::uint32_t changes = 1 + random() % 2; changes > 0; --changes) {
                mutate(json, random);
            }
            refused += refuses(reader, json);
        }
        EXPECT_GT(refused, kTurns / 10) << reader.name;
        const std::string valid = reader.valid.dump();
        for (unsigned i = 0; i < kTurns && !testing::Test::HasFailure(); ++i) {
            std::string text = valid;
            for (std::uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
                text[random() % text.size()] = kCharacters[random() % kCharacters.size()];
            }
            const Letter json = Letter::parse(text, nullptr, false);
            if (!json.is_discarded()) {
                (void)refuses(reader, json);
            }
        }
    }
}

// ---- the channel ----

// A channel, and the other end as a plain socket.
struct RawPeer {
    Socket raw;
    std::optional<ControlChannel> channel;

    RawPeer() {
        std::array<int, 2> fds{};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
        raw = Socket(fds[0]);
        channel.emplace(Socket(fds[1]));
    }
    void write(std::string_view bytes) {
        EXPECT_EQ(::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    void leave() { raw = Socket(); }
    // What the channel throws when it has received these bytes.
    std::string failure(std::string_view bytes) {
        write(bytes);
        try {
            const Letter message = channel->receive(Milliseconds(1000));
            return "it took " + message.dump();
        } catch (const MeasurementError& error) {
            return error.what();
        }
    }
    [[nodiscard]] std::optional<Letter> next(int ms = 0) { return channel->try_receive(Milliseconds(ms)); }
};

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

TEST(PollperfChannel, MessagesGoBothWaysOverTcp) {
    ControlListener listener(0);
    ASSERT_NE(listener.port(), 0u);
    ControlChannel client("127.0.0.1", listener.port(), Milliseconds(5000));
    auto accepted = listener.accept(-1, Milliseconds(5000));
    ASSERT_TRUE(accepted.has_value());
    ControlChannel server(std::move(*accepted));
    EXPECT_EQ(client.own_address(), "127.0.0.1");
    EXPECT_EQ(client.peer_address(), "127.0.0.1");
    EXPECT_EQ(server.own_address(), "127.0.0.1") << "no mapped address";
    EXPECT_EQ(server.peer_address(), "127.0.0.1");
    std::jthread answers([&] {
        for (int i = 0; i < 3; ++i) {
            const Letter request = server.receive(Milliseconds(5000));
            server.send({{"answer", request["n"]}});
        }
    });
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(client.ask({{"n", i}}, Milliseconds(5000)), Letter({{"answer", i}}));
    }
}

// The buffers of the sockets are smaller than the message.
TEST(PollperfChannel, ALongMessageIsSentInParts) {
    const Letter message = {{"text", std::string(3'000'000, 'x')}};
    std::array<int, 2> fds{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    ControlChannel near{Socket(fds[0])};
    ControlChannel far{Socket(fds[1])};
    const std::jthread sends([&] { near.send(message); });
    EXPECT_EQ(far.receive(Milliseconds(10'000)), message);
}

TEST(PollperfChannel, AMessageMayComeInParts) {
    RawPeer peer;
    peer.write("{\"a\":");
    EXPECT_FALSE(peer.next().has_value());
    EXPECT_FALSE(peer.next(10).has_value());
    peer.write("1}\n{\"b\"");
    EXPECT_EQ(peer.next(), Letter({{"a", 1}}));
    EXPECT_FALSE(peer.next().has_value());
    for (const char byte : std::string_view(":2}\n")) {
        EXPECT_FALSE(peer.next().has_value());
        peer.write({&byte, 1});
    }
    EXPECT_EQ(peer.next(), Letter({{"b", 2}}));
    EXPECT_FALSE(peer.next().has_value());
    // A short message behind the rest of a long one.
    peer.write("{\"a\":\"a long text");
    EXPECT_FALSE(peer.next().has_value());
    peer.write("\"}\n{}\n");
    EXPECT_EQ(peer.next(), Letter({{"a", "a long text"}}));
    EXPECT_EQ(peer.next(), Letter::object());
}

TEST(PollperfChannel, SeveralMessagesMayComeInOnePart) {
    RawPeer peer;
    std::string lines;
    for (int i = 0; i < 1000; ++i) {
        lines += "{\"i\":" + std::to_string(i) + "}\n";
    }
    peer.write(lines);
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(peer.next(), Letter({{"i", i}}));
    }
    EXPECT_FALSE(peer.next().has_value());
}

TEST(PollperfChannel, ALineWithoutAnEndIsRefused) {
    RawPeer peer;
    const std::string part(65536, 'x');
    std::size_t sent = 0;
    try {
        for (; sent < (16u << 20); sent += part.size()) {
            peer.write(part);
            EXPECT_FALSE(peer.next().has_value());
        }
        ADD_FAILURE() << "it has taken " << sent << " bytes";
    } catch (const MeasurementError& error) {
        EXPECT_TRUE(contains(error.what(), "sends a line without an end")) << error.what();
        EXPECT_GE(sent, 3u << 20);
        EXPECT_LE(sent, 5u << 20);
    }
}

TEST(PollperfChannel, WhatIsNoObjectIsRefused) {
    using namespace std::string_view_literals;
    for (const std::string_view line :
         {"hello\n"sv, "\n"sv, "42\n"sv, "null\n"sv, "[1]\n"sv, "\"text\"\n"sv, "{\"a\":1\n"sv, "{\"a\":1}}\n"sv,
          "{a:1}\n"sv, "{\"a\":\xff}\n"sv, "{\"a\":\"\xff\"}\n"sv, "\0\0\0\0\n"sv, "GET / HTTP/1.1\r\n\r\n"sv,
          "{\"a\":1e999}\n"sv}) {
        RawPeer peer;
        EXPECT_TRUE(contains(peer.failure(line), "does not speak as pollperf does")) << line;
    }
}

TEST(PollperfChannel, ADeepMessageNeedsNoDeepStack) {
    for (const std::string_view opening : {"[", "{\"a\":"}) {
        ControlListener listener(0);
        ControlChannel client("127.0.0.1", listener.port(), Milliseconds(5000));
        auto accepted = listener.accept(-1, Milliseconds(5000));
        ASSERT_TRUE(accepted.has_value());
        constexpr int kDepth = 200'000;
        std::string line = "{\"deep\":";
        for (int i = 0; i < kDepth; ++i) {
            line += opening;
        }
        line += "1" + std::string(kDepth, opening == "[" ? ']' : '}') + "}\n";
        const std::jthread writes([&] {
            for (std::size_t at = 0; at < line.size();) {
                const ssize_t n = ::send(accepted->get(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
                at += n > 0 ? static_cast<std::size_t>(n) : 0;
            }
        });
        EXPECT_TRUE(client.receive(Milliseconds(20'000)).contains("deep"));
    }
}

TEST(PollperfChannel, APeerThatHasLeftIsNoticed) {
    {
        RawPeer peer;
        peer.write("{\"a\":1}\n{\"b\":");
        peer.leave();
        EXPECT_EQ(peer.channel->receive(Milliseconds(1000)), Letter({{"a", 1}})) << "what it said before counts";
        EXPECT_THROW((void)peer.next(1000), MeasurementError) << "half a message is none";
    }
    {
        RawPeer peer;
        EXPECT_NO_THROW(peer.channel->look());
        peer.leave();
        EXPECT_THROW(peer.channel->look(), MeasurementError);
        EXPECT_THROW((void)peer.channel->receive(Milliseconds(1000)), MeasurementError);
        EXPECT_THROW(peer.channel->send({{"a", 1}}), MeasurementError);
    }
}

TEST(PollperfChannel, ATimeOutIsAsLongAsItShouldBe) {
    RawPeer peer;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(peer.next(50).has_value());
    const auto after = std::chrono::steady_clock::now() - began;
    EXPECT_GE(after, Milliseconds(50));
    EXPECT_LT(after, Milliseconds(5000));
    EXPECT_TRUE(contains(peer.failure(""), "has not answered within 1000 ms"));
    EXPECT_THROW((void)peer.channel->ask({{"a", 1}}, Milliseconds(20)), MeasurementError);
}

TEST(PollperfChannel, AnErrorOfThePeerIsThrownWithItsText) {
    RawPeer peer;
    EXPECT_TRUE(contains(peer.failure("{\"error\":\"no device\"}\n"), "says: no device"));
    EXPECT_TRUE(contains(peer.failure("{\"error\":7}\n"), "says: "));
    EXPECT_TRUE(contains(peer.failure("{\"ok\":true,\"error\":null}\n"), "says: "));
    peer.write("{\"error\":\"gone\"}\n");
    EXPECT_THROW(peer.channel->look(), MeasurementError);
    peer.write("{\"ok\":true}\n");
    EXPECT_THROW(peer.channel->look(), MeasurementError) << "nobody has asked";
}

// An error's text may have bytes of another program.
TEST(PollperfChannel, ATextThatIsNoUtf8IsSentAllTheSame) {
    std::array<int, 2> fds{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    ControlChannel near{Socket(fds[0])};
    ControlChannel far{Socket(fds[1])};
    ASSERT_NO_THROW(near.send({{"text", "before\xff after"}}));
    EXPECT_TRUE(contains(far.receive(Milliseconds(1000))["text"].get<std::string>(), "before"));
}

TEST(PollperfChannel, RandomBytesAreReadOrRefusedAndNothingElse) {
    std::mt19937 random(20'261'129);
    for (int i = 0; i < 2000; ++i) {
        RawPeer peer;
        std::string line = to_json(some_workload()).dump();
        for (std::uint32_t changes = random() % 6; changes > 0; --changes) {
            line[random() % line.size()] = static_cast<char>(random() % 256);
        }
        peer.write(line + "\n");
        try {
            while (peer.next().has_value()) {
            }
        } catch (const MeasurementError&) {
            continue;
        } catch (const std::exception& error) {
            FAIL() << error.what() << ": " << line;
        }
    }
}

TEST(PollperfChannel, AServerThatIsNotThereIsNamed) {
    std::uint16_t port = 0;
    {
        const ControlListener listener(0);
        port = listener.port();
    }
    try {
        const ControlChannel channel("127.0.0.1", port, Milliseconds(5000));
        ADD_FAILURE() << "another program listens there";
    } catch (const MeasurementError& error) {
        EXPECT_TRUE(contains(error.what(), "127.0.0.1, TCP port " + std::to_string(port))) << error.what();
    }
    EXPECT_THROW(ControlChannel("localhost", port, Milliseconds(1000)), MeasurementError);
    EXPECT_THROW(ControlChannel("", port, Milliseconds(1000)), MeasurementError);
}

TEST(PollperfChannel, AListenerWaitsForAClientOrUntilItIsStopped) {
    ControlListener listener(0);
    EXPECT_THROW(ControlListener{listener.port()}, Error) << "the port is in use";
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(listener.accept(-1, Milliseconds(30)).has_value());
    EXPECT_GE(std::chrono::steady_clock::now() - began, Milliseconds(30));
    const Socket stop(::eventfd(1, EFD_CLOEXEC));
    EXPECT_FALSE(listener.accept(stop.get(), std::chrono::hours(24 * 365)).has_value());
    // A client that has left before it was accepted is a client; its connection is not.
    { const ControlChannel client("127.0.0.1", listener.port(), Milliseconds(5000)); }
    auto accepted = listener.accept(-1, Milliseconds(5000));
    ASSERT_TRUE(accepted.has_value());
    EXPECT_THROW((void)ControlChannel(std::move(*accepted)).receive(Milliseconds(5000)), MeasurementError);
}

TEST(PollperfChannel, ASocketIsClosedOnceAndByItsLastOwner) {
    const auto is_open = [](int fd) { return ::fcntl(fd, F_GETFD) != -1; };
    int fd = -1;
    {
        Socket first(::eventfd(0, EFD_CLOEXEC));
        fd = first.get();
        Socket second(std::move(first));
        EXPECT_EQ(second.get(), fd);
        Socket third;
        third = std::move(second);
        EXPECT_EQ(third.get(), fd);
        EXPECT_TRUE(is_open(fd));
    }
    EXPECT_FALSE(is_open(fd));
}

// ---- peers that are no pollperf ----

TEST(PollperfServicePeer, PeersAreKnownByTheirAnswers) {
    const auto memory = MemoryOffer{.addr = 4096, .rkey = 7, .size = 64}.encode();
    for (const Op op : {Op::write, Op::read, Op::fetch_add, Op::compare_swap}) {
        const PeerKind peer = recognize_peer(memory, op, 64);
        EXPECT_FALSE(peer.answers);
        EXPECT_EQ(peer.memory.addr, 4096u);
        EXPECT_EQ(peer.memory.rkey, 7u);
        EXPECT_TRUE(contains(peer.description, "memory service of 64 bytes"));
    }
    EXPECT_THROW((void)recognize_peer(memory, Op::send, 64), MeasurementError);
    EXPECT_THROW((void)recognize_peer(memory, Op::read, 65), MeasurementError);
    const auto echo = EchoOffer{.message_size_max = 64, .depth = 8}.encode();
    EXPECT_TRUE(recognize_peer(echo, Op::send, 64).answers);
    EXPECT_THROW((void)recognize_peer(echo, Op::send, 65), MeasurementError);
    EXPECT_THROW((void)recognize_peer(echo, Op::write, 64), MeasurementError);
    EXPECT_TRUE(recognize_peer({}, Op::send, 64).answers);
    EXPECT_THROW((void)recognize_peer({}, Op::write, 64), MeasurementError);
}

TEST(PollperfServicePeer, AnAnswerMayBePaddedAndMustBeWhole) {
    const auto offer = MemoryOffer{.addr = 4096, .rkey = 7, .size = 64}.encode();
    auto padded = offer;
    padded.resize(196);
    EXPECT_EQ(recognize_peer(padded, Op::read, 64).memory.addr, 4096u);
    for (std::size_t length = 0; length < offer.size(); ++length) {
        EXPECT_THROW((void)recognize_peer(std::span(offer).first(length), Op::read, 64), MeasurementError) << length;
    }
    for (std::size_t byte = 0; byte < kServiceWireHeader; ++byte) {
        auto wrong = padded;
        wrong[byte] ^= std::byte{0x10};
        EXPECT_THROW((void)recognize_peer(wrong, Op::read, 64), MeasurementError) << byte;
    }
}

}  // namespace
}  // namespace pollcore::perf
