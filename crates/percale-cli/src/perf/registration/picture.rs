//! A plot for this machine in the style of figure 1 of the paper: bandwidths, and the costs of registering.

use super::lines::{Figures, RegistrationLine};
use crate::failure::{Failure, Result};
use crate::plot::{self, BLUE, GREEN, ORANGE, Panel, Series};
use crate::units;

/// Plots the results of the best monitor that was measured.
///
/// # Errors
/// Fails if no monitor was measured.
pub(super) fn picture(lines: &[RegistrationLine]) -> Result<String> {
    let monitor = lines.iter().find_map(|line| match line {
        RegistrationLine::Transfer { monitor, .. } => Some(monitor),
        _ => None,
    });
    let monitor = monitor.ok_or_else(|| Failure::Registration("no monitor is available: nothing to plot".into()))?;
    let mut bandwidths = [const { Vec::new() }; 3];
    let mut times = [const { Vec::new() }; 3];
    for line in lines {
        match line {
            RegistrationLine::Transfer { monitor: of, bytes, in_advance, each_time, cached, .. } if of == monitor => {
                for (points, figures) in bandwidths.iter_mut().zip([in_advance, cached, each_time]) {
                    points.push((*bytes as f64, *bytes as f64 * 1e9 / figures.p50_ns));
                }
            }
            RegistrationLine::Registration { monitor: of, bytes, plain_and_back, watched_and_back, missed, .. }
                if of == monitor =>
            {
                for (points, Figures { p50_ns, .. }) in times.iter_mut().zip([plain_and_back, watched_and_back, missed])
                {
                    points.push((*bytes as f64, *p50_ns));
                }
            }
            _ => {}
        }
    }
    let series = |names: [String; 3], points: [Vec<(f64, f64)>; 3]| {
        let colors = [BLUE, GREEN, ORANGE];
        let named = names.into_iter().zip(colors).zip(points);
        named.map(|((name, color), points)| Series { name, color, dashed: false, points }).collect()
    };
    let looked_up = format!("through the cache ({monitor})");
    let bandwidth = Panel {
        across: plot::Across::Sizes,
        title: "transfers",
        axis: "bandwidth",
        show: units::bandwidth,
        series: series(["registered in advance".into(), looked_up, "registered for each transfer".into()], bandwidths),
    };
    let names = ["register and deregister", "the same, watched by the cache", "a miss of the cache (registers only)"];
    let time = Panel {
        across: plot::Across::Sizes,
        title: "registrations",
        axis: "time",
        show: plot::time,
        series: series(names.map(String::from), times),
    };
    plot::picture("Transfers into memory, and registering it (p50)", &[bandwidth, time])
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::{figures, transfer};
    use super::*;

    #[test]
    fn the_picture_shows_the_best_monitor_and_every_point() {
        let mut lines = Vec::new();
        for (monitor, sizes) in [("bpf", 4), ("sealed", 2)] {
            for bytes in (0..sizes).map(|power| 4096_usize << (4 * power)) {
                lines.push(transfer(monitor, bytes, 1000.0, 1500.0, 1010.0));
                lines.push(RegistrationLine::Registration {
                    monitor: monitor.into(),
                    bytes,
                    plain: figures(500.0),
                    missed: figures(700.0),
                    ratio: 1.4,
                    plain_and_back: figures(800.0),
                    watched_and_back: figures(900.0),
                    and_back_ratio: 1.1,
                });
            }
        }
        let picture = picture(&lines).unwrap();
        assert_eq!(picture.matches("<circle").count(), 4 * 6);
        for part in
            ["registered in advance", "through the cache (bpf)", "registered for each transfer", "bandwidth", "16 MiB"]
        {
            assert!(picture.contains(part), "no {part}");
        }
    }

    #[test]
    fn plot_without_transfers_is_an_error() {
        assert!(matches!(picture(&[]), Err(Failure::Registration(_))));
    }
}
