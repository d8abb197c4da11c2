// What two pollperfs say to each other. A peer may be hostile.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pollperf/peer/letters.hpp"

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

}  // namespace
}  // namespace pollcore::perf
