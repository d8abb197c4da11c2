// The parts of polldoctor below the checks: reading trees, counters, and what goes into a bundle.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "pollcore/error.hpp"
#include "polldoctor/archive.hpp"
#include "polldoctor/device_counters.hpp"
#include "polldoctor/in_child.hpp"
#include "polldoctor/kernel_counters.hpp"
#include "polldoctor/network_queries.hpp"
#include "polldoctor/redaction.hpp"
#include "polldoctor/run_program.hpp"
#include "polldoctor/spin_gap.hpp"
#include "polldoctor_host.hpp"

namespace pollcore::doctor {
namespace {

using namespace std::chrono_literals;

TEST(PolldoctorTree, ReadsFilesLinesNumbersAndDirectories) {
    FakeHost host;
    host.write({{"/proc/a", "  12.5 x \nmore\n"}, {"/sys/d/b", ""}, {"/sys/d/c/e", "x"}});
    const Tree tree(host.root());
    EXPECT_EQ(tree.read("/proc/a").text, "  12.5 x \nmore\n");
    EXPECT_EQ(tree.line("/proc/a"), "12.5 x");
    EXPECT_EQ(tree.number("/proc/a"), 12.5);
    EXPECT_EQ(tree.line("/sys/d/b"), "");
    EXPECT_EQ(tree.number("/sys/d/b"), std::nullopt);
    EXPECT_EQ(tree.list("/sys/d"), (std::vector<std::string>{"b", "c"}));
    EXPECT_TRUE(tree.list("/nothing").empty());
    EXPECT_EQ(tree.line("/nothing"), std::nullopt);
    EXPECT_EQ(tree.why_not("/nothing"), "/nothing: not there");
    EXPECT_EQ(tree.read("/sys/d").error, EISDIR);
}

TEST(PolldoctorTree, ReadsAFileOnce) {
    FakeHost host;
    host.write({{"/proc/a", "1"}});
    const Tree tree(host.root());
    EXPECT_EQ(tree.line("/proc/a"), "1");
    host.write({{"/proc/a", "2"}});
    EXPECT_EQ(tree.line("/proc/a"), "1");
}

TEST(PolldoctorTree, OfACopyDoesNotLeaveTheCopy) {
    FakeHost host;
    host.write({{"/proc/inside", "inside"}});
    std::filesystem::create_symlink("/proc/inside", host.root() / "absolute");
    std::filesystem::create_symlink("../../../../../../etc/passwd", host.root() / "proc/outside");
    std::filesystem::create_symlink("/etc/passwd", host.root() / "proc/passwd");
    const Tree tree(host.root());
    EXPECT_EQ(tree.line("/absolute"), "inside");
    EXPECT_EQ(tree.read("/proc/outside").error, ENOENT);
    EXPECT_EQ(tree.read("/proc/passwd").error, ENOENT);
    EXPECT_EQ(tree.read("/../../../../../../etc/passwd").error, ENOENT);
}

TEST(PolldoctorTree, DoesNotWaitForAFifo) {
    FakeHost host;
    ASSERT_EQ(::mkfifo((host.root() / "fifo").c_str(), 0600), 0);
    EXPECT_EQ(Tree(host.root()).read("/fifo").error, EINVAL);
}

TEST(PolldoctorTree, RefusesAFileWithoutEnd) {
    FakeHost host;
    host.write({{"/huge", ""}});
    std::filesystem::resize_file(host.root() / "huge", std::uintmax_t{1} << 40);
    EXPECT_EQ(Tree(host.root()).read("/huge").error, EFBIG);
}

TEST(PolldoctorTree, KnowsFilesThatCouldNotBeReadWhereTheyWereCopied) {
    FakeHost host;
    host.write({{"/asked/unreadable", "13 /proc/secret file\n13 /proc/there\n"}, {"/proc/there", "x"}});
    const Tree tree(host.root());
    EXPECT_EQ(tree.why_not("/proc/secret file"), "/proc/secret file: not readable (Permission denied)");
    EXPECT_EQ(tree.line("/proc/there"), "x");
}

TEST(PolldoctorTree, ListsFilesThatWerePut) {
    Tree tree("/");
    tree.put("/asked/port/mlx5_0/1", "active_mtu 1024\n");
    EXPECT_EQ(tree.list("/asked/port"), std::vector<std::string>{"mlx5_0"});
    EXPECT_EQ(asked_number(tree, "/asked/port/mlx5_0/1", "active_mtu"), 1024);
    EXPECT_EQ(asked_number(tree, "/asked/port/mlx5_0/1", "active"), std::nullopt);
}

TEST(PolldoctorCounters, AreReadByTheCpusOfTheHeader) {
    const auto rows =
        counted_rows("      CPU0  CPU4\n 24:  7  8  IO-APIC  5-edge  eth0\nERR:  3\nLOC: 1 2 Local timer\n");
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0].by_cpu.at(4), 8u);
    EXPECT_EQ(rows[0].what, "IO-APIC 5-edge eth0");
    EXPECT_TRUE(rows[0].is_of_a_device());
    EXPECT_EQ(rows[1].by_cpu.count(4), 0u);
    EXPECT_FALSE(rows[2].is_of_a_device());
    EXPECT_TRUE(counted_rows("").empty());
    EXPECT_TRUE(counted_rows("no header\n1: 2\n").empty());
}

TEST(PolldoctorCounters, KernelParametersEndBeforeThoseOfInit) {
    FakeHost host;
    host.write({{"/proc/cmdline", "quiet isolcpus=1 isolcpus=2 -- isolcpus=3\n"}});
    const Tree tree(host.root());
    EXPECT_EQ(kernel_parameter(tree, "isolcpus"), "2");
    EXPECT_EQ(kernel_parameter(tree, "quiet"), "");
    EXPECT_EQ(kernel_parameter(tree, "isol"), std::nullopt);
}

TEST(PolldoctorRedaction, LeavesCommentsOut) {
    EXPECT_EQ(without_comments("# secret\nkey = 1 # secret\n\n[a]\n"), "\nkey = 1 \n\n[a]\n");
    EXPECT_EQ(without_comments("a = \"no # comment \\\" # still\" # secret"), "a = \"no # comment \\\" # still\" ");
    EXPECT_EQ(without_comments("a = 'C:\\' # secret\n"), "a = 'C:\\' \n");
    EXPECT_EQ(without_comments("a = \"\"\"x\n# text \"\" \"\"\" # secret\n"), "a = \"\"\"x\n# text \"\" \"\"\" \n");
    EXPECT_EQ(without_comments("a = '''x\n# text\n''' # secret\n"), "a = '''x\n# text\n''' \n");
    EXPECT_EQ(without_comments("a = \"forgotten\n# secret\n"), "a = \"forgotten\n\n");
    EXPECT_EQ(without_comments("a = \"\" # secret\n"), "a = \"\" \n");
    EXPECT_EQ(without_comments("a = \"end\\"), "a = \"end\\");
}

TEST(PolldoctorRedaction, ShowsParametersOfTheKernelThatHaveNoSecrets) {
    EXPECT_EQ(
        kernel_parameters_shown("quiet isolcpus=1-3 rd.luks.key=/k processor.max_cstate=1 PASSWORD=x -- --auth y\n"),
        "quiet isolcpus=1-3 rd.luks.key=... processor.max_cstate=1 PASSWORD=... -- ...\n");
    EXPECT_EQ(kernel_parameters_shown("foo.pass=\"correct horse\" quiet"), "foo.pass=... quiet\n");
    EXPECT_EQ(without_command_line("[0] Kernel command line: a=b\n[1] x\n[2] Unknown kernel command line parameters\n"),
              "(a line about the kernel's command line is left out)\n[1] x\n"
              "(a line about the kernel's command line is left out)\n");
}

TEST(PolldoctorProgram, ReturnsWhatItPrints) {
    EXPECT_EQ(output_of({"/bin/echo", "a b"}, 60s, 1000), "a b\n");
    EXPECT_EQ(output_of({"/usr/bin/env"}, 60s, 1000), "PATH=/usr/bin:/bin\nLC_ALL=C.UTF-8\n");
    EXPECT_NE(output_of({"/bin/false"}, 60s, 1000).find("failed"), std::string::npos);
    EXPECT_NE(output_of({"/no/such/program"}, 60s, 1000).find("No such file"), std::string::npos);
}

TEST(PolldoctorProgram, IsEndedIfItHangsOrWritesTooMuch) {
    EXPECT_NE(output_of({"/bin/sleep", "1000"}, 50ms, 1000).find("was ended"), std::string::npos);
    // Its child keeps the pipe open.
    EXPECT_NE(output_of({"/bin/sh", "-c", "sleep 20 & exit 0"}, 50ms, 1000).find("was ended"), std::string::npos);
    const std::string much = output_of({"/usr/bin/yes"}, 60s, 1000);
    EXPECT_EQ(much.substr(0, 4), "y\ny\n");
    EXPECT_LT(much.size(), 1200u);
}

TEST(PolldoctorChild, GivesWhatWasWrittenBeforeItHung) {
    ChildAnswer answer;
    for (auto time = 200ms; answer.text.empty() && time < 60s;
         time *= 2) {  // on a busy machine the child may begin late
        answer = in_child(
            [](const auto& write) {
                write("first\n");
                ::pause();
                write("second\n");
            },
            time, 1000);
        EXPECT_FALSE(answer.whole);
    }
    EXPECT_EQ(answer.text, "first\n");
    EXPECT_TRUE(in_child([](const auto& write) { write("all"); }, 60s, 1000).whole);
    EXPECT_FALSE(in_child([](const auto&) { throw std::runtime_error("failed"); }, 60s, 1000).whole);
    EXPECT_FALSE(in_child([](const auto& write) { write(std::string(5000, 'x')); }, 60s, 1000).whole);
}

TEST(PolldoctorChild, ReadsCountersAsTheyAre) {
    FakeHost host;
    host.write({{"/sys/a", "12\n"}, {"/sys/empty", ""}, {"/sys/lines", "1 2\n3 4\n"}});
    Tree tree(host.root());
    read_counters(tree, {"/sys/a", "/sys/gone", "/sys/empty", "/sys/lines"});
    ASSERT_EQ(tree.readings().size(), 4u);
    host.write({{"/sys/a", "13\n"}});
    EXPECT_EQ(tree.read("/sys/a").text, "12\n") << "it was not read in the child";
    EXPECT_EQ(tree.read("/sys/gone").error, ENOENT);
    EXPECT_TRUE(tree.read("/sys/empty").ok());
    EXPECT_EQ(tree.read("/sys/empty").text, "");
    EXPECT_EQ(tree.read("/sys/lines").text, "1 2\n3 4\n");
}

TEST(PolldoctorArchive, IsForItsOwnerAndReplacesNothing) {
    FakeHost place;
    const std::filesystem::path file = place.root() / "a.tar.gz";
    {
        Archive archive(file);
        archive.add("a/b", "content");
        archive.add_directory("a/c");
        archive.finish();
    }
    struct stat status {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    EXPECT_EQ(output_of({"/bin/tar", "-tzf", file.string()}, 60s, 1000), "a/b\na/c/\n");
    EXPECT_EQ(output_of({"/bin/tar", "-xOzf", file.string(), "a/b"}, 60s, 1000), "content");
    EXPECT_THROW(Archive again(file), Error);
    EXPECT_EQ(::stat(file.c_str(), &status), 0);

    std::filesystem::create_symlink(place.root() / "elsewhere.tar.gz", place.root() / "link.tar.gz");
    EXPECT_THROW(Archive linked(place.root() / "link.tar.gz"), Error);
    EXPECT_FALSE(std::filesystem::exists(place.root() / "elsewhere.tar.gz"));
}

TEST(PolldoctorArchive, IsRemovedIfItIsNotFinished) {
    FakeHost place;
    const std::filesystem::path file = place.root() / "a.tar.zst";
    { Archive archive(file); }
    EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(PolldoctorMeasurement, SaysWhatASpinningThreadSaw) {
    const Tree tree("/");
    const std::string lines = spin_on(*allowed_cpus(tree).begin(), 5ms);
    Tree copy("/");
    copy.put(spin_file(0), lines);
    EXPECT_GE(asked_number(copy, spin_file(0), "spun_ns").value_or(0), 4.9e6) << lines;
    EXPECT_TRUE(asked_number(copy, spin_file(0), "longest_ns").has_value());
    EXPECT_TRUE(asked_number(copy, spin_file(0), "gaps").has_value());
}

TEST(PolldoctorMeasurement, SaysWhyACoreIsNotMeasured) {
    EXPECT_TRUE(spin_on(1023, 1ms).starts_with("not_measured this process may not run there: "));
}

TEST(PolldoctorQueries, SayWhyNothingAnswers) {
    EXPECT_TRUE(ask_port("no-such-device", 1).starts_with("not_asked"));
    EXPECT_TRUE(ask_dcb("").starts_with("not_asked"));
    EXPECT_TRUE(ask_dcb("no-such-netdev").starts_with("not_asked RTM_GETDCB: ")) << ask_dcb("no-such-netdev");
    EXPECT_TRUE(ask_dcb("lo").starts_with("not_asked RTM_GETDCB: ")) << ask_dcb("lo");
}

TEST(PolldoctorCommands, AreWordsOfAShell) {
    EXPECT_EQ(shell_word("eth0.5"), "eth0.5");
    EXPECT_EQ(shell_word(""), "''");
    EXPECT_EQ(shell_word("a b"), "'a b'");
    EXPECT_EQ(shell_word("a'$(b)"), "'a'\\''$(b)'");
}

}  // namespace
}  // namespace pollcore::doctor
