// Configuration files: which are accepted, which are refused, and with which message.
#include "pollcore/config.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "config/schema.hpp"
#include "config/units.hpp"
#include "config/validation.hpp"
#include "config_bad_files.hpp"
#include "config_texts.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

using config_texts::kCpus;
using config_texts::message_of;
using config_texts::small_config;
using config_texts::small_service;

// ---- What is refused ----

using bad_files::BadFile;

class BadFileTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, is_refused_with_this_message) {
    const BadFile& bad = GetParam();
    SCOPED_TRACE(bad.text);
    const std::string message = message_of(bad.text);
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than a line";
    if (bad.message.ends_with('*')) {
        EXPECT_EQ(message.substr(0, bad.message.size() - 1), bad.message.substr(0, bad.message.size() - 1));
    } else {
        EXPECT_EQ(message, bad.message);
    }
}

INSTANTIATE_TEST_SUITE_P(Config, BadFileTest, testing::ValuesIn(bad_files::all()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(ConfigBadFiles, have_a_row_for_each_kind_of_mistake) {
    EXPECT_GE(bad_files::all().size(), 100u);
}

// ---- Ways to wait ----

TEST(ConfigIdle, is_a_ladder_of_ways_to_wait) {
    const auto idle = [](const std::string& value, bool waitpkg = false) {
        config::Cpus cpus = kCpus;
        cpus.waitpkg = waitpkg;
        return config::parse(bad_files::worker_with("idle = " + value), "f.toml", cpus).workers[0].idle;
    };
    EXPECT_EQ(idle("\"yield\""), IdleLadder(IdlePolicy::yield));
    const IdleLadder three{{IdlePolicy::spin, 20us}, {IdlePolicy::pause, 200us}, {IdlePolicy::event}};
    EXPECT_EQ(idle("[{spin = \"20us\"}, {pause = \"200us\"}, \"event\"]"), three);
    EXPECT_EQ(idle("[{spin = \"20000ns\"}, {pause = \"200us\"}, \"event\"]"), three);
    EXPECT_EQ(three.describe(), "spin 20us, pause 200us, event");
    EXPECT_TRUE(three.has(IdlePolicy::event));
    EXPECT_FALSE(three.has(IdlePolicy::monitor));
    EXPECT_EQ(idle("\"monitor\"", true), IdleLadder(IdlePolicy::monitor)) << "on CPUs that have it";
    EXPECT_THROW((void)idle("\"monitor\"", false), ConfigError);
}

TEST(ConfigIdle, is_what_the_file_says_on_one_cpu_too) {
    const auto one = [](const std::string& more) {
        return config::parse(bad_files::worker_with(more), "f.toml", {{1}, {1}}).workers[0].idle;
    };
    EXPECT_EQ(one("idle = \"spin\""), IdleLadder(IdlePolicy::spin));
    EXPECT_EQ(one(""), IdleLadder(IdlePolicy::yield));
}

TEST(ConfigIdle, that_was_built_in_code_is_checked_too) {
    Config config = small_config();
    config.workers[0].idle = IdleLadder{{IdlePolicy::event}, {IdlePolicy::spin}};
    EXPECT_THROW(config::check(config, kCpus, config::Origin()), ConfigError);
    config.workers[0].idle.rungs.clear();
    EXPECT_THROW(config::check(config, kCpus, config::Origin()), ConfigError);
    config.workers[0].idle = static_cast<IdlePolicy>(77);
    EXPECT_THROW(config::check(config, kCpus, config::Origin()), ConfigError);
}

// ---- Cores ----

TEST(ConfigCore, that_is_left_out_is_the_last_one_that_no_worker_names) {
    const auto cores = [](std::initializer_list<const char*> tables) {
        std::string text(bad_files::kDevice);
        for (std::size_t i = 0; i < tables.size(); ++i) {
            text += "[[worker]]\nname = \"w" + std::to_string(i) + "\"\n" + tables.begin()[i] + "\n";
        }
        std::vector<std::uint32_t> found;
        // The process may use CPUs 0, 1 and 3.
        for (const WorkerConfig& worker : config::parse(text, "f.toml", kCpus).workers) {
            found.push_back(worker.core);
        }
        return found;
    };
    EXPECT_EQ(cores({""}), (std::vector<std::uint32_t>{3}));
    EXPECT_EQ(cores({"", ""}), (std::vector<std::uint32_t>{3, 1}));
    EXPECT_EQ(cores({"", "core = 3"}), (std::vector<std::uint32_t>{1, 3}));
    EXPECT_EQ(cores({"", "core = 0", ""}), (std::vector<std::uint32_t>{3, 0, 1}));
}

TEST(ConfigFile, that_cannot_be_read_is_refused_with_the_cause) {
    const std::string missing = testing::TempDir() + "pollcore-no-such-file.toml";
    try {
        (void)load_config(missing);
        FAIL() << "accepted";
    } catch (const ConfigError& error) {
        EXPECT_EQ(error.what(),
                  missing + ": cannot be read: No such file or directory; accepted: a TOML file that can be read");
        EXPECT_EQ(error.code(), std::errc::invalid_argument);
    }
    try {
        (void)load_config("/");
        FAIL() << "accepted";
    } catch (const ConfigError& error) {
        EXPECT_STREQ(error.what(), "/: cannot be read: Is a directory; accepted: a TOML file that can be read");
    }
}

TEST(ConfigFile, without_end_is_refused) {
    try {
        (void)load_config("/dev/zero");
        FAIL() << "accepted";
    } catch (const ConfigError& error) {
        EXPECT_STREQ(error.what(),
                     "/dev/zero: this is too large for a configuration; accepted: a file of at most 1MiB");
    }
}

TEST(ConfigFile, deep_within_dots_and_brackets_is_no_stack_overflow) {
    std::string dots = "a";
    for (int i = 0; i < 500; ++i) {
        dots += ".a";
    }
    std::string text;
    for (int i = 0; i < 126; ++i) {
        text += i == 0 ? dots + " = [\n" : "{" + dots + " = [\n";
    }
    text += "1\n";
    for (int i = 0; i < 126; ++i) {
        text += i == 125 ? "]\n" : "]}\n";
    }
    EXPECT_EQ(message_of(text),
              "f.toml:1: a = {...}: there is no such key; accepted: [runtime], [memory], [attach], [control], "
              "[statistics], [[device]], [[worker]], [[service]]");
}

// ---- Configurations built in code ----

TEST(ConfigInCode, that_is_right_is_accepted) {
    Config built = small_config();
    EXPECT_EQ(message_of(built), "accepted");
    built.services.push_back(small_service("s", "a"));
    EXPECT_EQ(message_of(built), "accepted");
}

TEST(ConfigInCode, is_refused_without_file_and_line) {
    Config built = small_config();
    built.workers[0].core = 64;
    EXPECT_EQ(message_of(built), "worker[0].core = 64: this machine has no such core; accepted: 0-1,3");
}

TEST(ConfigInCode, is_checked_like_a_file) {
    const auto with = [](auto change) {
        Config built = small_config();
        built.services.push_back(small_service("s", "a"));
        change(built);
        return message_of(built);
    };
    EXPECT_EQ(with([](Config& c) { c.devices.clear(); }), "device: there is none; accepted: 1 to 16 tables [[device]]");
    EXPECT_EQ(
        with([](Config& c) { c.devices[0].gid = "192.0.2.1"; }),
        R"(device[0].gid = "192.0.2.1": this key is for devices of kind "verbs" only; accepted: name, kind, profile)");
    EXPECT_EQ(with([](Config& c) { c.devices[0].kind = static_cast<DeviceConfig::Kind>(9); }),
              R"(device[0].kind = 9: this is none of the enumeration's values; accepted: "soft", "verbs")");
    EXPECT_EQ(with([](Config& c) { c.workers[0].cq_depth = 100; }),
              "worker[0].cq_depth = 100: it is no power of two; accepted: a power of two from 16 to 4194304");
    EXPECT_EQ(with([](Config& c) { c.workers[0].name = "a\nb"; }),
              R"(worker[0].name = "a\u000Ab": it is not one word; accepted: )"
              "a word of letters, digits, '_', '-' and '.', at most 63 characters");
    EXPECT_EQ(with([](Config& c) { c.drain_timeout = -1500ms; }),
              R"(runtime.drain_timeout = "-1500ms": it is negative; accepted: )"
              R"(a duration from "1ms" to "600s" in whole milliseconds)");
    EXPECT_EQ(with([](Config& c) { c.drain_timeout = std::chrono::milliseconds::max(); }),
              R"(runtime.drain_timeout = "9223372036854775807ms": it is too long; accepted: )"
              R"(a duration from "1ms" to "600s" in whole milliseconds)");
    EXPECT_EQ(with([](Config& c) { c.lock_directory = "/tmp/\xc0\xaf"; }),
              "runtime.lock_directory = \"/tmp/\xc0\xaf\": it holds control characters or is no UTF-8; accepted: "
              "the absolute path of a directory, or \"\" for this user's own");
    EXPECT_EQ(with([](Config& c) { c.memory.size = (64ull << 20) + 1; }),
              R"(memory.size = "67108865B": it is no multiple of 2MiB; accepted: )"
              R"(a multiple of "2MiB" from "16MiB" to "1TiB")");
    EXPECT_EQ(with([](Config& c) { c.services[0].worker = "v"; }),
              R"(service[0].worker = "v": no [[worker]] has this name; accepted: "w")");
    EXPECT_EQ(with([](Config& c) { c.workers.push_back({.name = "v", .core = 1}); }),
              "worker[1].core = 1: worker[0] has this core already, and a worker shares its core with no other; "
              "accepted: 0,3");
}

TEST(ConfigInCode, says_when_no_core_is_left) {
    Config built = small_config();
    built.workers.push_back({.name = "v", .core = 0});
    built.workers.push_back({.name = "u", .core = 3});
    EXPECT_EQ(message_of(built), "accepted");
    built.workers.push_back({.name = "t", .core = 3});
    EXPECT_EQ(message_of(built),
              "worker[3].core = 3: worker[2] has this core already, and a worker shares its core with no other; "
              "accepted: no more workers: each core that this process may use has one");
}

TEST(ConfigInCode, takes_each_address_that_a_verbs_device_can_listen_on) {
    for (const char* address : {"192.0.2.1:7471", "0.0.0.0:0", "[::]:7471", "[fe80::1%eth0]:7471", "[fe80::1%2]:65535",
                                "[::ffff:192.0.2.1]:1"}) {
        Config built = small_config();
        built.devices[0].kind = DeviceConfig::Kind::verbs;
        built.services.push_back(small_service("s", address));
        EXPECT_EQ(message_of(built), "accepted") << address;
    }
}

TEST(ConfigInCode, may_leave_the_port_of_several_services_to_the_kernel) {
    Config built = small_config();
    built.devices[0].kind = DeviceConfig::Kind::verbs;
    built.services.push_back(small_service("s", "192.0.2.1:0"));
    built.services.push_back(small_service("t", "192.0.2.1:0"));
    EXPECT_EQ(message_of(built), "accepted");
}

TEST(ConfigInCode, is_checked_against_this_machine_by_validate) {
    const config::Cpus here = config::Cpus::of_this_process();
    ASSERT_FALSE(here.allowed.empty());
    Config built = small_config();
    built.workers[0].core = *here.allowed.begin();
    EXPECT_NO_THROW(validate(built));
    built.workers[0].core = *here.online.rbegin() + 1;
    EXPECT_THROW(validate(built), ConfigError);
    EXPECT_THROW((void)parse_config(print_config(built), "f.toml"), ConfigError);
}

TEST(Cpus, are_bound_to_what_the_asking_thread_is_pinned_to) {
    const config::Cpus all = config::Cpus::of_this_process();
    ASSERT_FALSE(all.bound.empty());
    const std::uint32_t last = *all.allowed.rbegin();
    config::Cpus pinned;
    std::thread([&] {
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET(last, &only);
        ASSERT_EQ(::sched_setaffinity(0, sizeof only, &only), 0);
        pinned = config::Cpus::of_this_process();
    }).join();
    EXPECT_EQ(pinned.bound, (std::set<std::uint32_t>{last}));
    EXPECT_EQ(pinned.allowed, all.allowed);
}

TEST(Cpus, are_listed_as_the_kernel_does) {
    EXPECT_EQ(config::parse_cpu_list("0-3,8\n", "x"), (std::set<std::uint32_t>{0, 1, 2, 3, 8}));
    EXPECT_EQ(config::parse_cpu_list("0", "x"), (std::set<std::uint32_t>{0}));
    EXPECT_EQ(config::print_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
    EXPECT_EQ(config::print_cpu_list({}), "");
    for (const char* wrong : {"a", "3-1", "0-", "1 2", "0-4294967295", "-1"}) {
        EXPECT_THROW((void)config::parse_cpu_list(wrong, "x"), Error) << wrong;
    }
}

// ---- Units ----

TEST(Units, of_bytes_are_exact) {
    const auto bytes = [](std::string_view text) { return std::get<std::uint64_t>(config::parse_bytes(text)); };
    EXPECT_EQ(bytes("0B"), 0u);
    EXPECT_EQ(bytes("4096B"), 4096u);
    EXPECT_EQ(bytes("4KiB"), 4096u);
    EXPECT_EQ(bytes("2MiB"), 2097152u);
    EXPECT_EQ(bytes("1GiB"), 1073741824u);
    EXPECT_EQ(bytes("18446744073709551615B"), std::numeric_limits<std::uint64_t>::max());
    for (const std::uint64_t value : {0ull, 1ull, 4095ull, 4096ull, 3ull << 20, 1ull << 40, ~0ull}) {
        EXPECT_EQ(bytes(config::print_bytes(value)), value);
    }
    EXPECT_EQ(config::print_bytes(3ull << 20), "3MiB");
    EXPECT_EQ(config::print_bytes(4097), "4097B");
}

TEST(Units, of_time_are_exact) {
    const auto ns = [](std::string_view text) {
        return std::get<std::chrono::nanoseconds>(config::parse_duration(text));
    };
    EXPECT_EQ(ns("100ns"), 100ns);
    EXPECT_EQ(ns("50us"), 50us);
    EXPECT_EQ(ns("5ms"), 5ms);
    EXPECT_EQ(ns("2s"), 2s);
    EXPECT_EQ(ns("9223372036854775807ns"), std::chrono::nanoseconds::max());
    EXPECT_EQ(config::print_duration(1500, 1'000'000), "1500ms");
    EXPECT_EQ(config::print_duration(2000, 1'000'000), "2s");
    EXPECT_EQ(config::print_duration(0, 1'000'000), "0ms");
    EXPECT_EQ(config::print_duration(50'000, 1), "50us");
}

}  // namespace
}  // namespace pollcore
