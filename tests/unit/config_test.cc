// The configuration: what is refused and with which words, what is accepted, and that printing and reading
// are each other's reverse. What is checked against a machine's CPUs is checked against CPUs made up here, so
// that the tests say the same on every machine.
#include "pollcore/config.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "config/check.hpp"
#include "config/schema.hpp"
#include "config/units.hpp"
#include "config_bad_files.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// CPU 2 exists but is not this process's.
const config::Cpus kCpus{{0, 1, 2, 3}, {0, 1, 3}};

std::string message_of(const std::string& text) {
    try {
        (void)config::parse(text, "f.toml", kCpus);
    } catch (const ConfigError& error) {
        return error.what();
    }
    return "accepted";
}

std::string message_of(const Config& built) {
    try {
        config::check(built, kCpus, config::Origin());
    } catch (const ConfigError& error) {
        return error.what();
    }
    return "accepted";
}

std::string read_file(const std::string& name) {
    std::ifstream file(name);
    EXPECT_TRUE(file) << name;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string sample(const std::string& name) {
    return read_file(POLLCORE_SOURCE_DIR "/config/" + name);
}

// ---- What is refused
// -------------------------------------------------------------------------------------------

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

TEST(ConfigFile, that_cannot_be_read_is_refused_with_the_cause) {
    const std::string missing = testing::TempDir() + "pollcore-no-such-file.toml";
    try {
        (void)load_config(missing);
        FAIL() << "accepted";
    } catch (const ConfigError& error) {
        EXPECT_EQ(
            error.what(),
            missing + ": cannot be read: No such file or directory; accepted: a TOML file that can be read");
        EXPECT_EQ(error.code(), std::errc::invalid_argument);
    }
    try {
        (void)load_config("/");
        FAIL() << "accepted";
    } catch (const ConfigError& error) {
        EXPECT_STREQ(error.what(),
                     "/: cannot be read: Is a directory; accepted: a TOML file that can be read");
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
    EXPECT_EQ(
        message_of(text),
        "f.toml:1: a = {...}: there is no such key; accepted: [runtime], [memory], [[device]], [[worker]], "
        "[[service]]");
}

// ---- Configurations built in code
// ------------------------------------------------------------------------------

Config small_config(const std::string& device = "d", const std::string& worker = "w") {
    Config built;
    built.devices.emplace_back().name = device;
    built.workers.push_back({.name = worker, .core = 1});
    return built;
}

ServiceConfig small_service(std::string name, std::string address) {
    ServiceConfig service;
    service.name = std::move(name);
    service.device = "d";
    service.worker = "w";
    service.address = std::move(address);
    return service;
}

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
    EXPECT_EQ(with([](Config& c) { c.devices.clear(); }),
              "device: there is none; accepted: 1 to 16 tables [[device]]");
    EXPECT_EQ(
        with([](Config& c) { c.devices[0].gid = "192.0.2.1"; }),
        R"(device[0].gid = "192.0.2.1": this key is for devices of kind "verbs" only; accepted: name, kind)");
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
    EXPECT_EQ(
        with([](Config& c) { c.lock_directory = "/tmp/\xc0\xaf"; }),
        "runtime.lock_directory = \"/tmp/\xc0\xaf\": it holds control characters or is no UTF-8; accepted: "
        "the absolute path of a directory");
    EXPECT_EQ(with([](Config& c) { c.memory.size = (64ull << 20) + 1; }),
              R"(memory.size = "67108865B": it is no multiple of 2MiB; accepted: )"
              R"(a multiple of "2MiB" from "16MiB" to "1TiB")");
    EXPECT_EQ(with([](Config& c) { c.services[0].worker = "v"; }),
              R"(service[0].worker = "v": no [[worker]] has this name; accepted: "w")");
    EXPECT_EQ(
        with([](Config& c) { c.workers.push_back({.name = "v", .core = 1}); }),
        "worker[1].core = 1: worker[0] has this core already, and a worker shares its core with no other; "
        "accepted: 0,3");
}

TEST(ConfigInCode, says_when_no_core_is_left) {
    Config built = small_config();
    built.workers.push_back({.name = "v", .core = 0});
    built.workers.push_back({.name = "u", .core = 3});
    EXPECT_EQ(message_of(built), "accepted");
    built.workers.push_back({.name = "t", .core = 3});
    EXPECT_EQ(
        message_of(built),
        "worker[3].core = 3: worker[2] has this core already, and a worker shares its core with no other; "
        "accepted: no more workers: each core that this process may use has one");
}

TEST(ConfigInCode, takes_each_address_that_a_verbs_device_can_listen_on) {
    for (const char* address : {"192.0.2.1:7471", "0.0.0.0:0", "[::]:7471", "[fe80::1%eth0]:7471",
                                "[fe80::1%2]:65535", "[::ffff:192.0.2.1]:1"}) {
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

TEST(Cpus, are_listed_as_the_kernel_does) {
    EXPECT_EQ(config::parse_cpu_list("0-3,8\n", "x"), (std::set<std::uint32_t>{0, 1, 2, 3, 8}));
    EXPECT_EQ(config::parse_cpu_list("0", "x"), (std::set<std::uint32_t>{0}));
    EXPECT_EQ(config::print_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
    EXPECT_EQ(config::print_cpu_list({}), "");
    for (const char* wrong : {"a", "3-1", "0-", "1 2", "0-4294967295", "-1"}) {
        EXPECT_THROW((void)config::parse_cpu_list(wrong, "x"), Error) << wrong;
    }
}

// ---- Units
// -----------------------------------------------------------------------------------------------------

TEST(Units, of_bytes_are_exact) {
    const auto bytes = [](std::string_view text) {
        return std::get<std::uint64_t>(config::parse_bytes(text));
    };
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

// ---- The samples
// -----------------------------------------------------------------------------------------------

// With the examples that a sample shows commented out ("#key = ...", no blank after '#'), and without its
// prose.
std::string with_examples(const std::string& text) {
    std::istringstream lines(text);
    std::string out;
    for (std::string line; std::getline(lines, line);) {
        if (line.size() > 1 && line[0] == '#' && line[1] != ' ' && line[1] != '-') {
            out += line.substr(1) + '\n';
        } else if (!line.empty() && line[0] != '#') {
            out += line + '\n';
        }
    }
    return out;
}

// For the example's worker on core 2.
const config::Cpus kFourCpus{{0, 1, 2, 3}, {0, 1, 2, 3}};
const config::Cpus kTwoCpus{{0, 1}, {0, 1}};

TEST(Sample, of_pollcored_is_accepted_on_two_cpus) {
    const Config parsed = config::parse(sample("pollcored.toml"), "pollcored.toml", kTwoCpus);
    EXPECT_EQ(parsed.devices.size(), 1u);
    EXPECT_EQ(parsed.workers.size(), 1u);
    ASSERT_EQ(parsed.services.size(), 1u);
    EXPECT_EQ(parsed.services[0].kind, ServiceConfig::Kind::echo);
}

TEST(Sample, of_pollcored_shows_the_defaults) {
    const Config parsed = config::parse(sample("pollcored.toml"), "pollcored.toml", kTwoCpus);
    Config defaults = small_config("soft0", "worker0");
    defaults.services.push_back(
        {.name = "echo0", .device = "soft0", .worker = "worker0", .address = "echo0"});
    EXPECT_EQ(parsed, defaults);
}

TEST(Sample, of_pollcored_has_examples_that_are_accepted) {
    const Config parsed = config::parse(with_examples(sample("pollcored.toml")), "pollcored.toml", kFourCpus);
    EXPECT_EQ(parsed.devices.size(), 2u);
    EXPECT_EQ(parsed.workers.size(), 2u);
    EXPECT_EQ(parsed.services.size(), 2u);
    EXPECT_EQ(parsed.devices[1].kind, DeviceConfig::Kind::verbs);
    EXPECT_EQ(parsed.services[1].size, 16u << 20);
}

// Collects "[runtime] qps_max" and so on from the schema.
struct AllKeys {
    std::vector<std::pair<std::string, std::string>> keys;

    template <class Object>
    void table(const char* name, const Object& object) {
        const config::Cpus none;
        config::each_field(object, none, [&](const config::Key& key, auto, const auto&) {
            keys.emplace_back(name, key.name);
        });
    }
    template <class Object>
    void list(const char* name, const std::vector<Object>&) {
        table(name, Object());
    }
};

TEST(Sample, of_pollcored_documents_every_key) {
    AllKeys all;
    const Config none;
    config::each_section(none, all);
    EXPECT_GE(all.keys.size(), 25u);
    const std::string text = '\n' + sample("pollcored.toml");
    for (const auto& [section, key] : all.keys) {
        bool found = false;
        for (std::size_t at = 0; !found && (at = text.find('[' + section + ']', at)) != std::string::npos;
             ++at) {
            // Until the next table of another name.
            std::size_t end = at;
            do {
                end = text.find("\n[", end + 1);
            } while (end != std::string::npos && text.substr(end + 1).starts_with("[[" + section + "]]"));
            const std::string part = text.substr(at, end == std::string::npos ? end : end - at);
            const std::size_t plain = part.find('\n' + key + " = ");
            const std::size_t example = part.find("\n#" + key + " = ");
            const std::size_t line = plain != std::string::npos ? plain : example;
            // The line before is prose about it, but for a table shown a second time.
            found = line != std::string::npos && part.rfind("\n# ", line) != std::string::npos;
        }
        EXPECT_TRUE(found) << '[' << section << "] " << key;
    }
}

TEST(Sample, for_the_loopback_is_accepted_on_two_cpus) {
    const Config parsed = config::parse(sample("loopback.toml"), "loopback.toml", kTwoCpus);
    ASSERT_EQ(parsed.devices.size(), 1u);
    EXPECT_EQ(parsed.devices[0].name, "soft0");
    EXPECT_EQ(parsed.devices[0].kind, DeviceConfig::Kind::soft);
    ASSERT_EQ(parsed.workers.size(), 1u);
    EXPECT_EQ(parsed.workers[0].core, 1u);
    EXPECT_EQ(parsed.workers[0].idle, IdlePolicy::spin);
    EXPECT_TRUE(parsed.services.empty());
}

TEST(Sample, for_the_loopback_loads_from_its_file_where_there_are_two_cpus) {
    const std::string file = POLLCORE_SOURCE_DIR "/config/loopback.toml";
    if (config::Cpus::of_this_process().allowed.contains(1)) {
        EXPECT_EQ(load_config(file).workers.size(), 1u);
    } else {
        EXPECT_THROW((void)load_config(file), ConfigError);
    }
}

// ---- Printing
// --------------------------------------------------------------------------------------------------

TEST(PrintConfig, marks_what_stands_at_its_default) {
    Config built = small_config();
    built.qps_max = 64;
    built.drain_timeout = 1500ms;
    built.services.push_back(small_service("s", "a"));
    built.services[0].kind = ServiceConfig::Kind::memory;
    built.services[0].size = 3u << 20;
    EXPECT_EQ(print_config(built), R"([runtime]
qps_max = 64
lock_directory = "/run/lock"  # default
drain_timeout = "1500ms"
log_level = "info"  # default

[memory]
hugepages = "prefer"  # default
size = "64MiB"  # default

[[device]]
name = "d"
kind = "soft"

[[worker]]
name = "w"
core = 1
idle = "spin"  # default
submit_burst = 32  # default
complete_burst = 32  # default
qp_burst = 32  # default
cq_depth = 4096  # default

[[service]]
name = "s"
kind = "memory"
device = "d"
worker = "w"
address = "a"
size = "3MiB"
connections_max = 16  # default
)");
}

TEST(PrintConfig, is_read_back_as_the_same) {
    for (const std::string& text :
         {sample("pollcored.toml"), sample("loopback.toml"), with_examples(sample("pollcored.toml"))}) {
        const Config parsed = config::parse(text, "f.toml", kFourCpus);
        EXPECT_EQ(config::parse(print_config(parsed), "printed", kFourCpus), parsed);
    }
}

// A random configuration that is right, with values from the ends of their ranges and from in between.
class RandomConfig {
public:
    explicit RandomConfig(std::uint64_t seed) : random_(seed) {}

    Config make() {
        Config made;
        made.qps_max = 1u << number(8, 16);
        made.lock_directory = pick({"/run/lock", "/tmp/a b", "/tmp/\"quoted\" \\ back",
                                    "/tmp/gr\xc3\xbc\xc3\x9f-\xe2\x82\xac-\xf0\x9f\x90\x9f"});
        made.drain_timeout = std::chrono::milliseconds(pick({1, 999, 1000, 1001, 60'000, 600'000}));
        made.log_level = static_cast<LogLevel>(number(0, 3));
        made.memory.hugepages = static_cast<MemoryConfig::Hugepages>(number(0, 2));
        made.memory.size = number(8, 1u << 19) * (2ull << 20);
        for (std::uint64_t i = number(1, kDevicesMax); i > 0; --i) {
            made.devices.push_back(device());
        }
        const std::uint64_t workers = number(1, kWorkersMax);
        for (std::uint32_t i = 0; i < workers; ++i) {
            made.workers.push_back(worker(i));
        }
        for (std::uint64_t i = number(0, kServicesMax); i > 0; --i) {
            made.services.push_back(service(made));
        }
        return made;
    }

    static config::Cpus cpus() {
        config::Cpus result;
        for (std::uint32_t i = 0; i < kWorkersMax; ++i) {
            result.online.insert(i);
        }
        result.allowed = result.online;
        return result;
    }

private:
    std::uint64_t number(std::uint64_t min, std::uint64_t max) {
        return std::uniform_int_distribution<std::uint64_t>(min, max)(random_);
    }
    template <class T>
    T pick(std::initializer_list<T> values) {
        return *(values.begin() + number(0, values.size() - 1));
    }
    template <class T>
    const T& pick(const std::vector<T>& values) {
        return values[number(0, values.size() - 1)];
    }
    std::uint32_t number32(std::uint32_t min, std::uint32_t max) {
        return static_cast<std::uint32_t>(number(min, max));
    }
    // Never the same twice.
    std::string word() {
        constexpr std::string_view kCharacters = "abcXYZ059_-.";
        std::string made = std::to_string(++words_) + "-";
        for (std::uint64_t i = number(0, kNameLengthMax - 12); i > 0; --i) {
            made += kCharacters[number(0, kCharacters.size() - 1)];
        }
        return made;
    }
    DeviceConfig device() {
        DeviceConfig made;
        made.name = word();
        if (number(0, 1) == 1) {
            made.kind = DeviceConfig::Kind::verbs;
            made.verbs_name = number(0, 1) == 1 ? word() : "";
            made.port = static_cast<std::uint8_t>(number(1, 255));
            made.gid = pick({"", "192.0.2.1", "fe80::1"});
        }
        return made;
    }
    WorkerConfig worker(std::uint32_t core) {
        WorkerConfig made;
        made.name = word();
        made.core = core;
        made.idle = static_cast<IdlePolicy>(number(0, 2));
        made.submit_burst = number32(1, kBurstMax);
        made.complete_burst = number32(1, kBurstMax);
        made.qp_burst = number32(1, kBurstMax);
        made.cq_depth = 1u << number(4, 22);
        return made;
    }
    // So small that all of them fit together.
    static constexpr std::uint64_t kServicesMax = 8;
    ServiceConfig service(const Config& made_so_far) {
        const DeviceConfig& device = pick(made_so_far.devices);
        const WorkerConfig& worker = pick(made_so_far.workers);
        ServiceConfig made;
        made.name = word();
        made.device = device.name;
        made.worker = worker.name;
        made.connections_max = number32(1, 16);
        made.address =
            device.kind == DeviceConfig::Kind::soft ? word() : "[fe80::1%eth0]:" + std::to_string(++words_);
        if (number(0, 1) == 1) {
            made.kind = ServiceConfig::Kind::memory;
            made.size = number(64, made_so_far.memory.size / kServicesMax);
        } else {
            made.depth = number32(1, 16);
            const std::uint64_t most = made_so_far.memory.size / (kServicesMax * 16 * 16) / kCacheLine * kCacheLine;
            made.message_size_max = number(1, std::min<std::uint64_t>(most, 1ull << 31));
        }
        return made;
    }

    std::mt19937_64 random_;
    int words_ = 0;
};

TEST(PrintConfig, of_any_valid_configuration_is_read_back_as_the_same) {
    const config::Cpus cpus = RandomConfig::cpus();
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        const Config made = RandomConfig(seed).make();
        const std::string text = print_config(made);
        ASSERT_NO_THROW(config::check(made, cpus, config::Origin())) << "seed " << seed << '\n' << text;
        ASSERT_EQ(config::parse(text, "printed", cpus), made) << "seed " << seed << '\n' << text;
    }
}

// ---- Whatever the file
// -----------------------------------------------------------------------------------------

// Changes a text in one to four places: bytes, runs of bytes, lines, and pieces that mean something to TOML.
std::string mutate(std::string text, std::mt19937_64& random) {
    static constexpr std::string_view kPieces[] = {"\"",
                                                   "\"\"\"",
                                                   "'",
                                                   "[",
                                                   "]",
                                                   "[[",
                                                   "]]",
                                                   "{",
                                                   "}",
                                                   "=",
                                                   ".",
                                                   ",",
                                                   "#",
                                                   "\n",
                                                   "\r\n",
                                                   "\\u0000",
                                                   "\\",
                                                   "-",
                                                   "+",
                                                   "0x",
                                                   "1e9",
                                                   "nan",
                                                   "inf",
                                                   "true",
                                                   "1979-05-27T07:32:00Z",
                                                   "99999999999999999999",
                                                   "-1",
                                                   "9223372036854775807",
                                                   "KiB",
                                                   "[[worker]]\n",
                                                   "[device]\n",
                                                   "a.b.c = 1\n",
                                                   "\xff",
                                                   "\xef\xbb\xbf",
                                                   "\xe2\x82",
                                                   "name = ",
                                                   "[[service]]\n"};
    const auto number = [&](std::size_t max) {
        return std::uniform_int_distribution<std::size_t>(0, max)(random);
    };
    for (std::size_t changes = 1 + number(3); changes > 0; --changes) {
        const std::size_t at = number(text.size());
        switch (number(5)) {
            case 0: text.insert(at, 1, static_cast<char>(number(255))); break;
            case 1: text.erase(at, number(8)); break;
            case 2: text.insert(at, kPieces[number(std::size(kPieces) - 1)]); break;
            case 3: text.insert(at, text.substr(number(text.size()), number(60))); break;
            case 4:
                if (at < text.size()) {
                    text[at] = static_cast<char>(number(255));
                }
                break;
            default: {  // a line goes, or comes twice
                const std::size_t begin =
                    text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
                const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
                if (begin < end) {
                    const std::string line = text.substr(begin, end - begin);
                    number(1) == 0 ? text.erase(begin, line.size()) : text.insert(begin, line);
                }
            }
        }
    }
    return text;
}

TEST(AnyText, is_accepted_or_refused_in_one_line) {
    constexpr int kRounds = 20'000;
    const std::string full = sample("pollcored.toml");
    const std::string bare = with_examples(full);
    std::mt19937_64 random(20'240'229);
    int accepted = 0;
    for (int round = 0; round < kRounds; ++round) {
        // Most of the full text is comments, where a change changes nothing.
        const std::string text = mutate(round % 4 == 0 ? full : bare, random);
        try {
            const Config parsed = config::parse(text, "f.toml", kFourCpus);
            ++accepted;
            ASSERT_EQ(config::parse(print_config(parsed), "printed", kFourCpus), parsed) << text;
        } catch (const ConfigError& error) {
            const std::string_view message = error.what();
            ASSERT_TRUE(message.starts_with("f.toml:")) << message << '\n' << text;
            ASSERT_NE(message.find("; accepted: "), message.npos) << message << '\n' << text;
            for (const char c : message) {
                ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << message << '\n' << text;
            }
        }
    }
    // Else the rounds tested one half only.
    EXPECT_GT(accepted, kRounds / 50);
    EXPECT_LT(accepted, kRounds - kRounds / 50);
}

}  // namespace
}  // namespace pollcore
